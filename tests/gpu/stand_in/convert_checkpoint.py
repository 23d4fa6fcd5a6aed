import sys

print("converting with", *sys.argv[1:])
