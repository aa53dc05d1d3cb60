// Package supervise implements `runner phase`, the supervisor process of one phase. PID 1 sends it a Spec, and it
// returns Reports. The supervisor is a subreaper, so every process that the phase starts stays its descendant, however
// it forks. The supervisor runs as long as it has descendants, so PID 1 always knows which processes belong to which
// phase. PID 1, not the supervisor, enforces the timeout and kills the processes, because a phase that runs as root can
// stop or kill a supervisor.
//
// Open supervise.go first. become.go switches to the user and executes the command, and leftovers.go kills all other
// phases.
package supervise
