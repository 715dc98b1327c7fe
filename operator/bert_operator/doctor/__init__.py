"""What is wrong with a cluster, before a job finds out: ``kubectl bert doctor``.

Reads objects by a reader that the command line brings, concludes findings from them, and prints nothing. Needs the
standard library alone, as the plugin of which it is a part does.
"""
