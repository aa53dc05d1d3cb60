// Package phase runs one command as a phase, and manages its timeout, output and processes. It turns a request into the
// command's result. Open phase.go first, which runs a phase. exec.go runs a guest's command. family.go waits for the
// processes of a command and kills them. environment.go, input.go and output.go prepare the command's variables, stdin
// and output. printed.go returns parts of an output, and named.go remembers the users of phases.
package phase
