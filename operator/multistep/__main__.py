"""``python -m multistep`` starts the operator."""

from multistep.app.kopf_handlers import main

main()
