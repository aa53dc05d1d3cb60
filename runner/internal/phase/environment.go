package phase

import (
	"maps"
	"slices"
	"strings"

	"multistep.dev/runner/internal/users"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// private variables of ours are none of the phases' business.
const private = "MULTISTEP_"

// environment is PID 1's, with what follows the user, and what was given on top.
func environment(base []string, user users.User, given map[string]string) [][]byte {
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

// follow sets HOME, USER and LOGNAME. PID 1's own HOME stays for its own user: the image may have set another one.
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
