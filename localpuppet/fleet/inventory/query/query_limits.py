"""Limits of a question: the one table for queries over HTTP, in manifests and in commands.

Lengths are in characters, sizes in bytes.
"""

# -- the text, and the tree that it becomes --
MAX_QUERY_TEXT = 64 * 1024
MAX_QUERY_DEPTH = 50
MAX_CONDITIONS = 500
MAX_QUERY_VALUES = 10_000
MAX_FIELDS = 100
MAX_PATH_STEPS = 32

# -- regular expressions, and what they search --
MAX_EXPRESSION = 1024
# RE2's own limit for a compiled expression.
MAX_EXPRESSION_MEMORY = 1024 * 1024
MAX_SUBJECT = 64 * 1024
MAX_NUMBER = 64

# -- the answer --
MAX_SQL_STEPS = 1_000_000_000
MAX_ANSWER_ROWS = 200_000
# As JSON, which localpuppet and Ruby hold in memory at once.
MAX_ANSWER = 32 * 1024 * 1024

# -- functions of Puppet code --
MAX_ARGUMENTS = 100
MAX_QUESTION = 128 * 1024
