// Decides which environment variables a command gets.

package phase

import (
	"maps"
	"slices"
	"strings"

	"multistep.dev/runner/internal/users"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// private is the prefix of the runner's own variables, which commands do not get.
const private = "MULTISTEP_"

// Environment returns PID 1's environment with HOME, USER and LOGNAME of the user, overridden by the request's variables.
func Environment(base []string, user users.User, given map[string]string) [][]byte {
	variables := map[string]string{"PATH": defaultPath}
	for _, variable := range base {
		if name, value, ok := strings.Cut(variable, "="); ok && name != "" && !strings.HasPrefix(name, private) {
			variables[name] = value
		}
	}
	follow(user, variables)
	maps.Copy(variables, given)
	var env [][]byte
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		env = append(env, []byte(name+"="+variables[name]))
	}
	return env
}

// follow sets HOME, USER and LOGNAME for the user. PID 1's own user keeps its HOME, which the image may have set.
func follow(user users.User, variables map[string]string) {
	if _, set := variables["HOME"]; !set || !user.Own {
		variables["HOME"] = user.Home
	}
	for _, name := range []string{"USER", "LOGNAME"} {
		delete(variables, name)
		if user.Name != "" {
			variables[name] = user.Name
		}
	}
}
