"""``python -m multistep`` starts the operator."""

from .handlers import main

main()
