"""The state of a pass, which compiled operations read anew in each run: the number of tokens, their positions and
texts.

int64 (SIZE,), whose address is in each operation's field STATE. Tokens of several texts run together; those of one text
are consecutive. Texts have separate keys, values and states: an operation knows the address of a table with one address
for each slot.
"""

MAX_TOKENS = 8
TOKENS = 0  # number of tokens
FIRST = 1  # position of the first token, for operations of a single text
POSITIONS = 2  # of each token in its text
ANGLES = POSITIONS + MAX_TOKENS  # each token's row in the rotation tables
SLOTS = ANGLES + MAX_TOKENS  # the number of each token's text
SIZE = SLOTS + MAX_TOKENS
