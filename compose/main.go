// Reads the command line and runs the subcommand.

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
)

const usage = `usage: compose read     read a request as JSON from stdin, print the model as JSON
       compose keys     print the table of all keys of the compose specification as JSON
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	logrus.SetOutput(io.Discard)
	if len(args) != 1 {
		args = []string{""}
	}
	switch args[0] {
	case "read":
		if err := limit(); err != nil {
			return err
		}
		var request Request
		if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
			return fmt.Errorf("the request is not JSON: %w", err)
		}
		return json.NewEncoder(os.Stdout).Encode(Read(request))
	case "keys":
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", " ")
		return encoder.Encode(Keys)
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
	return nil
}
