// KWOK runs this program in place of the runner in exec sessions of simulated pods. It connects the session to the process that
// simulates all runners.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	line, err := net.Dial("unix", os.Getenv("SIMULATION_SOCKET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(line, os.Getenv("SIMULATED_POD"))
	go func() {
		io.Copy(line, os.Stdin)
		line.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(os.Stdout, line)
}
