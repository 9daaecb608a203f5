"""What compiled operations read anew in each run: how many tokens there are, where each stands, whose text it is.

int64 (SIZE,), whose address is in each operation's field STATE. Tokens of several texts run together; those of one text
follow one another. A text's keys, values and states lie apart: an operation knows the address of a table with one
address for each slot.
"""

MAX_TOKENS = 8
TOKENS = 0  # how many
FIRST = 1  # position of the first token, for operations of a single text
POSITIONS = 2  # of each token in its text
ANGLES = POSITIONS + MAX_TOKENS  # of each token its row in the rotation tables
SLOTS = ANGLES + MAX_TOKENS  # of each token the number of its text
SIZE = SLOTS + MAX_TOKENS
