// Loads the file with Docker Compose's library, and converts its services to the model.

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	mainService = "main"
	// ownImage stands for main's image, whose name the reader does not know.
	ownImage = "multistep.invalid/main"
	// base is the file that Harbor 0.26 merges each compose file into (docker-compose-prebuilt.yaml). Harbor's command, which only
	// keeps the container running, is left out, because the runner does this.
	base = "services:\n  main:\n    image: " + ownImage + "\n"
)

// Read returns the model of a compose file, or the refusals of everything that the trial cannot run.
func Read(request Request) Answer {
	variables := map[string]string{"MAIN_IMAGE_NAME": ownImage, "PREBUILT_IMAGE_NAME": ownImage, "CONTEXT_DIR": "."}
	maps.Copy(variables, request.Variables)
	request.Variables = variables
	file, err := parse(request.Text, variables)
	if err != nil {
		return Answer{Refused: []Refusal{{"", 0, fmt.Sprintf("is not YAML: %v", err)}}}
	}
	whole := len(file.refused) == 0
	if file.walk(file.root, nil, nil); !whole || file.opens || file.visits > maxVisits {
		return refusals(file)
	}
	for name := range file.ofTrial {
		variables[name] = placeholderStart + name + placeholderEnd
	}
	project, err := load(request)
	if err != nil {
		if len(file.refused) == 0 { // otherwise the refused keys may be the reason
			file.refused = append(file.refused, failure(err))
		}
		return refusals(file)
	}
	reading := reading{file: file, project: project, request: request, directory: path.Dir(request.Path)}
	answer := reading.model()
	if len(file.refused) > 0 {
		return refusals(file)
	}
	if len(reading.needs) > 0 {
		return Answer{Needs: reading.needs}
	}
	answer.Variables = file.ofTrial
	answer.Ignored = file.ignored
	return answer
}

// refusals returns the answer for a file with refused keys, in the order of the file's lines.
func refusals(file *document) Answer {
	slices.SortStableFunc(file.refused, func(a, b Refusal) int { return a.Line - b.Line })
	return Answer{Refused: file.refused}
}

// load merges the file into Harbor's base. It opens no file, because walk has refused includes and `extends` of other files, and
// the request has the texts of env_files.
func load(request Request) (*types.Project, error) {
	details := types.ConfigDetails{
		WorkingDir:  "/",
		Environment: request.Variables,
		ConfigFiles: []types.ConfigFile{
			{Filename: "/base.yaml", Content: []byte(base)}, {Filename: "/" + path.Base(request.Path), Content: []byte(request.Text)},
		},
	}
	return loader.LoadWithContext(context.Background(), details, func(options *loader.Options) {
		options.SetProjectName("trial", true)
		options.ResolvePaths = false
		options.SkipInclude = true
		options.SkipResolveEnvironment = true
		options.SkipResolveLabels = true
	})
}

var lineOf = regexp.MustCompile(`line (\d+)`)

// failure returns the library's error as a refusal of the file.
func failure(err error) Refusal {
	text, line := err.Error(), 0
	if found := lineOf.FindStringSubmatch(text); found != nil {
		line, _ = strconv.Atoi(found[1])
	}
	key, message, found := strings.Cut(text, ": ")
	if !found || strings.ContainsAny(key, " /") {
		key, message = "", text
	}
	return Refusal{key, line, message}
}

// reading is the conversion of one file. The field needs has the env_files whose contents the request lacks.
type reading struct {
	file      *document
	project   *types.Project
	request   Request
	directory string
	needs     []Need
}

func (r *reading) model() Answer {
	names := r.project.ServiceNames()
	slices.Sort(names)
	answer := Answer{}
	for _, name := range names {
		service := r.project.Services[name]
		if skipped, found := r.file.skipped[name]; found { // the service is active, because its profiles were reset or are empty
			r.file.walk(skipped, []string{"services", name}, []string{"services", name})
		}
		r.check(service)
		answer.Services = append(answer.Services, r.service(service))
		answer.Hosts = append(answer.Hosts, r.hosts(service)...)
	}
	r.checkProject()
	r.addLinks(answer.Services)
	return answer
}

// taskPath converts a path in the file to a path in the task. If the path leads out of the task, it adds a refusal and returns
// false.
func (r *reading) taskPath(key []string, value string) (string, bool) {
	clean := path.Clean(path.Join(r.directory, value))
	if path.IsAbs(value) || strings.HasPrefix(value, "~") || clean == ".." || strings.HasPrefix(clean, "../") {
		r.file.refuse(key, "must be a path in the task, relative to %s/; got %q", r.directory, value)
		return "", false
	}
	return clean, true
}

func (r *reading) service(service types.ServiceConfig) Service {
	key := []string{"services", service.Name}
	converted := Service{
		Name: service.Name, Line: r.file.line(key), Image: service.Image,
		Entrypoint: service.Entrypoint, Command: service.Command,
		Environment: r.environment(key, service), WorkingDir: service.WorkingDir, User: service.User,
		Healthcheck: r.healthcheck(key, service.HealthCheck), DependsOn: r.dependencies(key, service),
		Mounts: r.mounts(key, service), Names: serviceNames(service), Ports: r.ports(key, service),
		CapAdd: capabilities(service.CapAdd), CapDrop: capabilities(service.CapDrop), ReadOnly: service.ReadOnly,
		NoNewPrivileges: slices.ContainsFunc(service.SecurityOpt, noNewPrivileges), ShmBytes: int64(service.ShmSize),
		Stdin: service.StdinOpen, TTY: service.Tty, Restarts: restarts(service),
	}
	if service.Image == ownImage {
		converted.Image, converted.SameImage = "", true
	}
	converted.CPUs, converted.MemoryBytes = float64(service.CPUS), int64(service.MemLimit)
	converted.MemoryRequest = int64(service.MemReservation)
	if service.Deploy != nil {
		if limits := service.Deploy.Resources.Limits; limits != nil {
			converted.CPUs = max(converted.CPUs, float64(limits.NanoCPUs))
			converted.MemoryBytes = max(converted.MemoryBytes, int64(limits.MemoryBytes))
		}
		if least := service.Deploy.Resources.Reservations; least != nil {
			converted.CPURequest = float64(least.NanoCPUs)
			converted.MemoryRequest = max(converted.MemoryRequest, int64(least.MemoryBytes))
		}
	}
	r.checkRequests(key, converted)
	if service.Build != nil {
		converted.Build = r.build(with(key, "build"), *service.Build)
	}
	return converted
}

// restarts returns whether Compose starts the service again after it ended.
func restarts(service types.ServiceConfig) bool {
	condition := service.Restart
	if service.Deploy != nil && service.Deploy.RestartPolicy != nil {
		condition = service.Deploy.RestartPolicy.Condition
	}
	return !slices.Contains([]string{"", "no", "none"}, condition)
}

func (r *reading) build(key []string, build types.BuildConfig) *Build {
	directory, _ := r.taskPath(with(key, "context"), build.Context)
	args := map[string]string{}
	for name, value := range build.Args {
		if value != nil {
			args[name] = *value
		} else if given, found := r.request.Variables[name]; found {
			args[name] = given
		}
	}
	return &Build{directory, build.Dockerfile, args, build.Target}
}

// environment returns the variables of env_files, overridden by the variables of the service's key `environment`.
func (r *reading) environment(key []string, service types.ServiceConfig) map[string]string {
	found := map[string]string{}
	lookup := func(name string) (string, bool) {
		if value, here := found[name]; here {
			return value, true
		}
		value, given := r.request.Variables[name]
		return value, given
	}
	for _, file := range service.EnvFiles {
		r.envFile(with(key, "env_file"), file, lookup, found)
	}
	for name, value := range service.Environment {
		if value != nil {
			found[name] = *value
		} else if given, here := r.request.Variables[name]; here {
			found[name] = given
		}
	}
	return found
}

func (r *reading) envFile(key []string, file types.EnvFile, lookup dotenv.LookupFn, found map[string]string) {
	place, inside := r.taskPath(key, file.Path)
	if !inside {
		return
	}
	text, here := r.request.Files[place]
	if !here {
		r.needs = append(r.needs, Need{place, r.file.line(key), bool(file.Required)})
		return
	}
	if err := dotenv.ParseWithFormat(strings.NewReader(text), place, found, lookup, ""); err != nil {
		r.file.refuse(key, "%s cannot be read: %v", place, err)
	}
}

func (r *reading) healthcheck(key []string, check *types.HealthCheckConfig) *Healthcheck {
	if check == nil || check.Disable || len(check.Test) == 0 || check.Test[0] == "NONE" {
		if check != nil && !check.Disable && len(check.Test) == 0 {
			r.file.refuse(with(key, "healthcheck"), "has no test: the image's healthcheck is not known here, so write the test")
		}
		return nil
	}
	argv := []string(check.Test[1:])
	if len(argv) == 0 {
		r.file.refuse(with(key, "healthcheck"), "has no command after %s in its test", check.Test[0])
	}
	if check.Test[0] == "CMD-SHELL" {
		argv = append([]string{"/bin/sh", "-c"}, argv...)
	}
	converted := Healthcheck{
		Argv: argv, Interval: seconds(check.Interval, 30), Timeout: seconds(check.Timeout, 30),
		StartPeriod: seconds(check.StartPeriod, 0), StartInterval: seconds(check.StartInterval, 5), Retries: 3,
	}
	if check.Retries != nil && *check.Retries > 0 {
		converted.Retries = int(min(*check.Retries, 100_000))
	}
	return &converted
}

// seconds returns a duration in seconds, or usual (Docker's default) if the duration is not set or 0.
func seconds(duration *types.Duration, usual float64) float64 {
	if duration == nil || *duration <= 0 {
		return usual
	}
	return float64(*duration) / 1e9
}

var conditions = map[string]string{
	types.ServiceConditionStarted: "started", types.ServiceConditionHealthy: "healthy",
	types.ServiceConditionCompletedSuccessfully: "completed",
}

func (r *reading) dependencies(key []string, service types.ServiceConfig) []Dependency {
	var found []Dependency
	for name, dependency := range service.DependsOn {
		if _, active := r.project.Services[name]; !active {
			if dependency.Required {
				r.file.refuse(append(key, "depends_on", name), "is a service of an inactive profile, which never starts")
			}
			continue
		}
		found = append(found, Dependency{name, conditions[dependency.Condition]})
	}
	slices.SortFunc(found, func(a, b Dependency) int { return strings.Compare(a.Service, b.Service) })
	return found
}

// serviceNames returns all names by which other services can reach the service.
func serviceNames(service types.ServiceConfig) []string {
	names := []string{service.Name, service.Hostname, service.ContainerName}
	for _, network := range service.Networks {
		if network != nil {
			names = append(names, network.Aliases...)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// addLinks adds to each service's names the aliases that the links of services give it.
func (r *reading) addLinks(services []Service) {
	for _, service := range r.project.Services {
		for _, link := range service.Links {
			name, alias, found := strings.Cut(link, ":")
			for number := range services {
				if found && services[number].Name == name && !slices.Contains(services[number].Names, alias) {
					services[number].Names = append(services[number].Names, alias)
					slices.Sort(services[number].Names)
				}
			}
		}
	}
}

func (r *reading) ports(key []string, service types.ServiceConfig) []string {
	var found []string
	for _, port := range service.Ports {
		found = append(found, fmt.Sprintf("%d/%s", port.Target, orElse(strings.ToLower(port.Protocol), "tcp")))
	}
	for _, exposed := range service.Expose {
		number, protocol, _ := strings.Cut(exposed, "/")
		if _, err := strconv.ParseUint(number, 10, 16); err != nil {
			r.file.refuse(with(key, "expose"), "must be single ports; got %q", exposed)
			continue
		}
		found = append(found, number+"/"+orElse(strings.ToLower(protocol), "tcp"))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func orElse(text, usual string) string {
	if text == "" {
		return usual
	}
	return text
}

func (r *reading) hosts(service types.ServiceConfig) []Host {
	var found []Host
	for name, addresses := range service.ExtraHosts {
		for _, address := range addresses {
			address = strings.Trim(address, "[]")
			if address == "host-gateway" {
				r.file.refuse([]string{"services", service.Name, "extra_hosts"}, "%s: host-gateway is the node, which no trial reaches", name)
			} else if _, err := netip.ParseAddr(address); err != nil {
				r.file.refuse([]string{"services", service.Name, "extra_hosts"}, "%s must have an IP address; got %q", name, address)
			}
			found = append(found, Host{name, address})
		}
	}
	slices.SortFunc(found, func(a, b Host) int { return strings.Compare(a.Name+" "+a.Address, b.Name+" "+b.Address) })
	return found
}

func capabilities(names []string) []string {
	var found []string
	for _, name := range names {
		found = append(found, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func noNewPrivileges(option string) bool {
	return option == "no-new-privileges" || option == "no-new-privileges:true" || option == "no-new-privileges=true"
}
