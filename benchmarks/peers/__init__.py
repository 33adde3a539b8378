"""The other systems, each in its own environment: `python -m benchmarks peers install`.

`catalogue` lists the systems, how they are set up and what they promise; a text file per system fixes its versions;
`environments` creates their environments. An adapter is one script that runs there and speaks `adapters/protocol`, and
so does one for ours, so that all are measured by the same means. `running` starts them, `places` gives them databases.
"""
