"""Interlocks, which are conditions under which no action is accepted, one per file.

The contract schema and the code table read the declarations of these classes during the import of
`embodied_env.contract`. So it is imported first, and an interlock imports types that need it for the type checker only.
"""

import embodied_env.contract  # noqa: F401 - before the modules of this package
