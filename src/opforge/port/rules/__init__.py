"""The rules that find vendor references, one file for each kind of code. A rule's functions visit one node."""
