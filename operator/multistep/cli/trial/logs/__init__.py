"""`multistep logs`.

command          options
trial_output     reads the output of a trial's phases or of a service
follow_output    follows it, or the log of an image build, by polling
print_logs       divides output by phase, step and attempt; formats it
"""
