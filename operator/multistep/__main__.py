"""``python -m multistep`` starts the operator."""

from multistep.handlers import main

main()
