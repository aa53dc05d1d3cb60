// Defines the JSON of the operator's request and of the answer.

package main

// Request is the input.
type Request struct {
	// Path is the file's path in the task, for messages.
	Path string `json:"path"`
	// Text is the file's content.
	Text string `json:"text"`
	// Variables has the values of ${NAME}.
	Variables map[string]string `json:"variables"`
	// Files has the contents of the env_files that an earlier answer listed in Needs, by path in the task.
	Files map[string]string `json:"files"`
}

// Answer is the output. It has either all refusals, or the env_files whose contents the model needs, or the model.
type Answer struct {
	Refused  []Refusal `json:"refused,omitempty"`
	Needs    []Need    `json:"needs,omitempty"`
	Services []Service `json:"services,omitempty"`
	Hosts    []Host    `json:"hosts,omitempty"`
	// Ignored lists the keys that have no effect, though they may have one with Docker.
	Ignored []Refusal `json:"ignored,omitempty"`
	// Variables has, by name, the variables that have placeholders in the model, because the trial sets their values.
	Variables map[string]Variable `json:"variables,omitempty"`
}

// Variable is the place where the file uses a variable without a default.
type Variable struct {
	Key  string `json:"key"`
	Line int    `json:"line"`
}

// Need is an env_file that the model needs.
type Need struct {
	// Path is the file's path in the task.
	Path string `json:"path"`
	// Line is the line of the key that names the file.
	Line     int  `json:"line"`
	Required bool `json:"required"`
}

// Host is a host name, and the address outside of the trial to which it resolves.
type Host struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// Service is one service of the compose file. If Entrypoint, Command, WorkingDir or User is not set, the image's value applies.
// User is a uid or uid:gid. SameImage tells that the service uses main's image.
type Service struct {
	Name            string            `json:"name"`
	Line            int               `json:"line"`
	Image           string            `json:"image"`
	SameImage       bool              `json:"same_image"`
	Build           *Build            `json:"build"`
	Entrypoint      []string          `json:"entrypoint"`
	Command         []string          `json:"command"`
	Environment     map[string]string `json:"environment"`
	WorkingDir      string            `json:"working_dir"`
	User            string            `json:"user"`
	CPUs            float64           `json:"cpus"`
	MemoryBytes     int64             `json:"memory_bytes"`
	CPURequest      float64           `json:"cpu_request"`
	MemoryRequest   int64             `json:"memory_request"`
	Healthcheck     *Healthcheck      `json:"healthcheck"`
	DependsOn       []Dependency      `json:"depends_on"`
	Mounts          []Mount           `json:"mounts"`
	Names           []string          `json:"names"`
	Ports           []string          `json:"ports"`
	CapAdd          []string          `json:"cap_add"`
	CapDrop         []string          `json:"cap_drop"`
	ReadOnly        bool              `json:"read_only"`
	NoNewPrivileges bool              `json:"no_new_privileges"`
	ShmBytes        int64             `json:"shm_bytes"`
	Stdin           bool              `json:"stdin"`
	TTY             bool              `json:"tty"`
	Restarts        bool              `json:"restarts"`
}

// Build describes how the image is built. Context is a directory in the task.
type Build struct {
	Context    string            `json:"context"`
	Dockerfile string            `json:"dockerfile"`
	Args       map[string]string `json:"args"`
	Target     string            `json:"target"`
}

// Healthcheck is a service's healthcheck. Its times are in seconds.
type Healthcheck struct {
	Argv          []string `json:"argv"`
	Interval      float64  `json:"interval"`
	Timeout       float64  `json:"timeout"`
	StartPeriod   float64  `json:"start_period"`
	StartInterval float64  `json:"start_interval"`
	Retries       int      `json:"retries"`
}

// Dependency is a service that must first reach a condition, which is started, healthy or completed.
type Dependency struct {
	Service   string `json:"service"`
	Condition string `json:"condition"`
}

// Mount is a volume, a tmpfs, or a file or directory of the task. Source is the name of the volume ("" for an anonymous one) or a
// path in the task. Content is the text of a file that is not in the task. Mode has the permissions of a file, 0 for the default.
type Mount struct {
	Kind      string  `json:"kind"`
	Source    string  `json:"source"`
	Content   *string `json:"content"`
	Target    string  `json:"target"`
	Subpath   string  `json:"subpath"`
	ReadOnly  bool    `json:"read_only"`
	NoCopy    bool    `json:"no_copy"`
	SizeBytes int64   `json:"size_bytes"`
	Mode      int64   `json:"mode"`
	Line      int     `json:"line"`
}
