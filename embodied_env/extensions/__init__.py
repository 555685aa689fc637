"""Extensions: each folder can be removed with its tests, and everything else works."""
