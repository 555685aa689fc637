"""The command line ``embodied-env``, with one module per verb, imported on use.

Exit status::

    0    sound
    1    the evidence is not sound, or the run failed
    2    wrong usage of the command line, or an invalid contract
    130  interrupted from the keyboard
    143  ended by SIGTERM
    141  the reader of the output closed it before the end

An error is one line on stderr, ``embodied-env: error: ...``. Only a bug in the program prints a traceback.
"""

SOUND = 0
UNSOUND = 1
WRONG_USAGE = 2
INTERRUPTED = 130
READER_LEFT = 141
