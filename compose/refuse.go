// Refuses values that the trial's pod cannot have, although their keys are mapped.

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

var (
	number = regexp.MustCompile(`^\d{1,9}(:\d{1,9})?$`)
	// addable lists the capabilities that Pod Security `baseline` lets a container add.
	addable = []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP",
		"SETUID", "SYS_CHROOT",
	}
)

// check refuses values of mapped keys that the trial's pod cannot have.
func (r *reading) check(service types.ServiceConfig) {
	key := []string{"services", service.Name}
	refuse := func(name, format string, values ...any) { r.file.refuse(with(key, name), format, values...) }
	if service.Privileged {
		refuse("privileged", "must be false: %s", cannot)
	}
	if service.User != "" && !number.MatchString(service.User) {
		refuse("user", "must be a number, such as 1000 or 1000:1000, as Kubernetes knows no names; got %q", service.User)
	}
	for _, name := range capabilities(service.CapAdd) {
		if !slices.Contains(addable, name) {
			refuse("cap_add", "%s is not allowed by Pod Security baseline; allowed are %s", name, strings.Join(addable, ", "))
		}
	}
	for _, option := range service.SecurityOpt {
		switch {
		case option == "label=disable" || option == "label:disable":
			r.file.ignored = append(r.file.ignored, Refusal{
				strings.Join(with(key, "security_opt"), "."), r.file.line(with(key, "security_opt")),
				fmt.Sprintf("%s has no effect: the container's SELinux label applies; only seLinuxOptions in `spec.environment.podTemplate` change it", option),
			})
		case !noNewPrivileges(option):
			refuse("security_opt", "%q is not supported; only no-new-privileges and label=disable are", option)
		}
	}
	if service.Name == mainService && service.ReadOnly {
		refuse("read_only", "must be false for main: its phases write to it")
	}
	if service.Name == mainService && len(service.CapDrop) > 0 {
		refuse("cap_drop", "must be empty for main: its phases are started with the default capabilities")
	}
	if service.Name != mainService && service.Entrypoint != nil && len(service.Entrypoint) == 0 && len(service.Command) == 0 {
		refuse("entrypoint", "is empty, so the image's command would run without the image's entrypoint: write the command")
	}
	if service.Scale != nil && *service.Scale != 1 {
		refuse("scale", "must be 1, as services share one address; got %d", *service.Scale)
	}
	r.checkDeploy(with(key, "deploy"), service.Deploy)
	r.checkNetwork(key, service)
	for name, dependency := range service.DependsOn {
		if _, known := conditions[dependency.Condition]; !known {
			r.file.refuse(append(with(key, "depends_on"), name), "has the unknown condition %q", dependency.Condition)
		}
	}
	if service.Image == "" && service.Build == nil {
		r.file.refuse(key, "has neither image nor build")
	}
	if service.Restart != "" && !slices.Contains([]string{"no", "always", "unless-stopped"}, strings.SplitN(service.Restart, ":", 2)[0]) &&
		!strings.HasPrefix(service.Restart, "on-failure") {
		refuse("restart", "must be no, always, unless-stopped or on-failure; got %q", service.Restart)
	}
}

func (r *reading) checkDeploy(key []string, deploy *types.DeployConfig) {
	if deploy == nil {
		return
	}
	if deploy.Replicas != nil && *deploy.Replicas != 1 {
		r.file.refuse(with(key, "replicas"), "must be 1, as services share one address; got %d", *deploy.Replicas)
	}
	if deploy.Mode != "" && deploy.Mode != "replicated" {
		r.file.refuse(with(key, "mode"), "must be replicated; got %q", deploy.Mode)
	}
}

// checkRequests refuses resource requests above the limits, because the API server would reject the pod.
func (r *reading) checkRequests(key []string, service Service) {
	if service.CPUs > 0 && service.CPURequest > service.CPUs {
		r.file.refuse(with(key, "deploy"), "reserves %g CPUs, more than the limit of %g", service.CPURequest, service.CPUs)
	}
	if service.MemoryBytes > 0 && service.MemoryRequest > service.MemoryBytes {
		text := "reserves %d bytes of memory, more than the limit of %d"
		r.file.refuse(key, text, service.MemoryRequest, service.MemoryBytes)
	}
}

func (r *reading) checkNetwork(key []string, service types.ServiceConfig) {
	mode := service.NetworkMode
	if mode != "" && mode != "bridge" && mode != "default" && !strings.HasPrefix(mode, "service:") {
		r.file.refuse(with(key, "network_mode"), "must be bridge, default or service:NAME, as %s; got %q", oneNetwork, mode)
	}
}

// checkProject refuses networks and volumes with unsupported drivers, and services without a common network.
func (r *reading) checkProject() {
	for name, network := range r.project.Networks {
		if network.Driver != "" && network.Driver != "bridge" && network.Driver != "default" {
			r.file.refuse([]string{"networks", name, "driver"}, "must be bridge; got %q", network.Driver)
		}
	}
	for name, volume := range r.project.Volumes {
		if volume.Driver != "" && volume.Driver != "local" {
			r.file.refuse([]string{"volumes", name, "driver"}, "must be local; got %q", volume.Driver)
		}
	}
	names := r.project.ServiceNames()
	slices.Sort(names)
	for number, one := range names {
		for _, other := range names[number+1:] {
			if separate(r.project.Services[one], r.project.Services[other]) {
				r.file.refuse([]string{"services", one, "networks"}, "%s shares no network with %s, but %s", one, other, oneNetwork)
			}
		}
	}
}

// separate returns whether two services have no network in common.
func separate(one, other types.ServiceConfig) bool {
	if len(one.Networks) == 0 || len(other.Networks) == 0 { // a service with network_mode has no networks
		return false
	}
	for name := range one.Networks {
		if _, both := other.Networks[name]; both {
			return false
		}
	}
	return true
}
