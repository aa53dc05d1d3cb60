"""`multistep logs`.

command                       options
trial_output, follow_output   reads the output of a trial's phases; follows it by polling
service_output, build_log     output of a service; logs of image builds
log_pieces, print_logs        output by phase, step and attempt; its formats
"""
