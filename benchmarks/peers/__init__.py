"""The other systems, each in a virtual environment of its own: `python -m benchmarks peers install`.

`catalogue` says which there are, how they are set up and what they promise; a text file a system pins its versions;
`environments` makes what they run in. An adapter is one script that runs there and speaks `adapters/protocol`, and so does
one for ours, so that everybody is measured by the same means. `running` starts them, `places` gives them databases.
"""
