"""Limits of a preview: the one table for what a pull request and captures may bring.

Sizes are in bytes, lengths in characters.
"""

# -- captures: what a file of a node may hold --
MAX_CAPTURE = 8 * 1024 * 1024
MAX_CAPTURE_VALUES = 400_000
MAX_CAPTURE_LAYERS = 256
MAX_CAPTURE_NAME = 1024
MAX_CAPTURE_QUERIES = 512
MAX_CAPTURES = 200_000

# -- the release under test: its data files --
# Larger files, and such with more values, count as a whole.
MAX_DATA_FILE = 8 * 1024 * 1024
MAX_DATA_VALUES = 400_000
# Links in directories that other links lead to. A chain of such has any number of ways through it.
MAX_NESTED_LINKS = 10_000
# Uses of Ruby code by other code that are followed, for all changed files.
MAX_USES = 2_000_000

# -- the compiler, which runs code of the pull request --
MAX_COMPILER_LINE = 64 * 1024
MAX_COMPILER_ANSWER = 64 * 1024**2
# Counted before an answer is parsed: a value of three bytes may take a hundred of memory.
MAX_COMPILER_VALUES = 1_000_000
# Deaths of the process after which the rest of the catalogs fail.
MAX_DEATHS = 100

# -- the result --
MAX_PATTERN = 1024
# Larger files, and such that are not UTF-8, are shown by their digest.
MAX_SHOWN_FILE = 256 * 1024
# Bytes of all texts that are shown; further files are shown by their digest.
MAX_SHOWN_TEXTS = 64 * 1024 * 1024
# Bytes of all differences, which are in memory until the end.
MAX_DIFFERENCES = 256 * 1024 * 1024
# Bytes of what a node shows that did not compile before: all of its catalog is added.
MAX_FIXED_DIFFERENCE = 256 * 1024
# Forbidden differences that are named, each with its nodes.
MAX_VIOLATIONS = 500
# A blob has less than this when it is unpacked: four times an answer of the compiler, whose texts
# are written as ASCII in JSON within JSON.
MAX_CACHED = 256 * 1024 * 1024
