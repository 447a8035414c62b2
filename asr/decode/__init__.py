"""Many audio files in, one result each: inputs and their ids, output formats, and the loop that survives bad files."""
