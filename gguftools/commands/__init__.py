"""One thin file a command: parse, call one function, render. The file's name is the command's."""
