// Package phase runs one command as a phase and manages its timeout, output and processes. A request comes in, and the
// command's result goes out.
//
// Open phase.go first: it runs a phase. exec.go runs a guest's command. family.go waits for the processes of a command
// and kills them. environment.go, input.go and output.go prepare the command's variables, stdin and output. printed.go
// returns parts of an output, and named.go remembers the users that phases ran as.
package phase
