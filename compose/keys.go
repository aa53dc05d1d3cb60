// Decides for each key of the Compose specification whether a trial maps, drops, ignores or refuses it.

package main

import "strings"

// Outcome is how Multistep handles a key of the Compose specification.
type Outcome string

const (
	// Mapped keys become parts of the trial's pod. Values that cannot be mapped are refused (refuse.go).
	Mapped Outcome = "mapped"
	// Dropped keys have no effect on what runs in the pod.
	Dropped Outcome = "dropped"
	// Ignored keys have no effect, though they may have one with Docker. `multistep check` names them.
	Ignored Outcome = "ignored"
	// Refused keys would change what runs. A task with such a key is invalid.
	Refused Outcome = "refused"
)

// Key is a row of the table in docs/reference/compose.md. It gives the outcome of the keys that match Path (see find). In a path,
// "*" stands for a name, and "[]" for an item of a list.
type Key struct {
	Path    string  `json:"path"`
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"`
}

const (
	cannot     = "the trial's pod is unprivileged and shares the node with others"
	noHost     = "would be a namespace of the node, which other trials share"
	oneNetwork = "all services share the pod's one network"
	cgroups    = "Kubernetes has no such limit for a container; use deploy.resources.limits"
	forPeople  = "describes the service for people and tools"
)

// Keys is the table of all keys. A test checks that each key of the specification's JSON schema has a row.
var Keys = []Key{
	{"version", Dropped, "is obsolete in the specification"},
	{"name", Dropped, "the trial has its own name"},
	{"include", Refused, "copy the services into this file"},
	{"jobs", Refused, "nothing in a trial runs on a schedule"},
	{"models", Refused, "no model runner is part of a trial"},

	{"networks", Mapped, "allowed if every two services share a network: " + oneNetwork},
	{"networks.*", Mapped, "a network of the default driver"},
	{"networks.*.name", Dropped, oneNetwork},
	{"networks.*.driver", Mapped, "bridge only"},
	{"networks.*.labels", Dropped, forPeople},
	{"networks.*.attachable", Dropped, "nothing else is attached to the pod"},
	{"networks.*.driver_opts", Refused, oneNetwork},
	{"networks.*.enable_ipv4", Refused, oneNetwork},
	{"networks.*.enable_ipv6", Refused, oneNetwork},
	{"networks.*.external", Refused, "the trial's network is its pod's"},
	{"networks.*.internal", Refused, "use environment.network_mode of task.toml"},
	{"networks.*.ipam", Refused, "services have the address 127.0.0.1"},

	{"volumes", Mapped, "volumes of the pod, which services share; they are empty or have what the image has there"},
	{"volumes.*", Mapped, "emptyDir"},
	{"volumes.*.name", Dropped, "each trial has volumes of its own"},
	{"volumes.*.labels", Dropped, forPeople},
	{"volumes.*.driver", Mapped, "local only"},
	{"volumes.*.driver_opts", Refused, "would mount what is not of the task"},
	{"volumes.*.external", Refused, "a trial has only its own volumes"},

	{"configs", Mapped, "files of the task, or texts"},
	{"configs.*", Mapped, ""},
	{"configs.*.file", Mapped, "a file of the task"},
	{"configs.*.content", Mapped, ""},
	{"configs.*.name", Dropped, "the trial has its own name"},
	{"configs.*.labels", Dropped, forPeople},
	{"configs.*.environment", Refused, "write the value as content"},
	{"configs.*.external", Refused, "only files of the task"},
	{"configs.*.template_driver", Refused, "files are not expanded"},
	{"secrets", Mapped, "files of the task"},
	{"secrets.*", Mapped, ""},
	{"secrets.*.file", Mapped, "a file of the task"},
	{"secrets.*.name", Dropped, "the trial has its own name"},
	{"secrets.*.labels", Dropped, forPeople},
	{"secrets.*.environment", Refused, "use a file of the task"},
	{"secrets.*.external", Refused, "only files of the task"},
	{"secrets.*.driver", Refused, "only files of the task"},
	{"secrets.*.driver_opts", Refused, "only files of the task"},
	{"secrets.*.template_driver", Refused, "files are not expanded"},

	{"services", Mapped, "`main` is the trial's container; each other service is a native sidecar of its pod"},
	{"services.*", Mapped, ""},
	{"services.*.image", Mapped, "of main: the trial's image, unless `spec.environment.image` is set"},
	{"services.*.build", Mapped, "built in the cluster if the chart has a registry, unless `spec.environment.serviceImages` (main's: `spec.environment.image`) names an image"},
	{"services.*.build.context", Mapped, "`environment/`, or a directory in it (`tests/` in a verifier's file)"},
	{"services.*.build.dockerfile", Mapped, ""},
	{"services.*.build.args", Mapped, ""},
	{"services.*.build.args.*", Mapped, ""},
	{"services.*.build.target", Mapped, ""},
	{"services.*.build.labels", Dropped, forPeople},
	{"services.*.build.tags", Dropped, "the image's name has the digest of what it is built from"},
	{"services.*.build.no_cache", Dropped, "a cache does not change the image"},
	{"services.*.build.no_cache_filter", Dropped, "a cache does not change the image"},
	{"services.*.build.cache_from", Dropped, "a cache does not change the image"},
	{"services.*.build.cache_to", Dropped, "a cache does not change the image"},
	{"services.*.build.pull", Dropped, "base images are pulled if they are missing"},
	{"services.*.build.provenance", Dropped, forPeople},
	{"services.*.build.sbom", Dropped, forPeople},
	{"services.*.build.additional_contexts", Refused, "copy the files below the context"},
	{"services.*.build.dockerfile_inline", Refused, "write a Dockerfile"},
	{"services.*.build.entitlements", Refused, cannot},
	{"services.*.build.extra_hosts", Refused, "a build has no services"},
	{"services.*.build.isolation", Refused, "linux only"},
	{"services.*.build.network", Refused, "a build has the builder's network"},
	{"services.*.build.platforms", Ignored, "the image is built for the nodes' platform"},
	{"services.*.build.privileged", Refused, cannot},
	{"services.*.build.secrets", Refused, "a build has no secrets"},
	{"services.*.build.shm_size", Refused, "builders differ in it"},
	{"services.*.build.ssh", Refused, "a build has no credentials"},
	{"services.*.build.ulimits", Refused, "builders differ in it"},

	{"services.*.command", Mapped, "arguments, also without an entrypoint; of main: a phase that runs in the background"},
	{"services.*.entrypoint", Mapped, "the container's command; of main: see command"},
	{"services.*.environment", Mapped, "of main: of every phase, below environment.env of task.toml"},
	{"services.*.environment.*", Mapped, ""},
	{"services.*.env_file", Mapped, "files of the task"},
	{"services.*.env_file.[].path", Mapped, ""},
	{"services.*.env_file.[].required", Mapped, ""},
	{"services.*.env_file.[].format", Refused, "write the file in the usual format"},
	{"services.*.working_dir", Mapped, "of main: below environment.workdir of task.toml"},
	{"services.*.user", Mapped, "uid or uid:gid, no name; of main: the default user of its phases"},
	{"services.*.group_add", Refused, "groups would be of the whole pod"},
	{"services.*.healthcheck", Mapped, "startupProbe: what follows starts when the service is healthy; of main: runs before the first step"},
	{"services.*.healthcheck.test", Mapped, "CMD, CMD-SHELL or NONE"},
	{"services.*.healthcheck.interval", Mapped, "with retries and start_period: how long the service may take to be healthy"},
	{"services.*.healthcheck.retries", Mapped, ""},
	{"services.*.healthcheck.start_period", Mapped, ""},
	{"services.*.healthcheck.start_interval", Mapped, "how often the check runs, once a second at most"},
	{"services.*.healthcheck.timeout", Mapped, "of one check"},
	{"services.*.healthcheck.disable", Mapped, ""},
	{"services.*.depends_on", Mapped, "order of the init containers; nothing may wait for main"},
	{"services.*.depends_on.*", Mapped, ""},
	{"services.*.depends_on.*.required", Mapped, ""},
	{"services.*.depends_on.*.condition", Mapped, "service_completed_successfully makes the service a plain init container"},
	{"services.*.depends_on.*.restart", Dropped, "nothing restarts a service on purpose"},
	{"services.*.links", Mapped, "aliases of 127.0.0.1"},
	{"services.*.hostname", Mapped, "a name of 127.0.0.1"},
	{"services.*.container_name", Mapped, "a name of 127.0.0.1"},
	{"services.*.extra_hosts", Mapped, "hostAliases of the pod, for all services"},
	{"services.*.extra_hosts.*", Mapped, ""},
	{"services.*.networks", Mapped, "aliases are names of 127.0.0.1"},
	{"services.*.networks.*", Mapped, ""},
	{"services.*.networks.*.aliases", Mapped, "names of 127.0.0.1"},
	{"services.*.networks.*.priority", Dropped, oneNetwork},
	{"services.*.networks.*.gw_priority", Dropped, oneNetwork},
	{"services.*.networks.*.use_service_name_alias", Refused, "the service's name is always a name of 127.0.0.1"},
	{"services.*.networks.*.driver_opts", Refused, oneNetwork},
	{"services.*.networks.*.interface_name", Refused, oneNetwork},
	{"services.*.networks.*.ipv4_address", Refused, "services have the address 127.0.0.1"},
	{"services.*.networks.*.ipv6_address", Refused, "services have the address 127.0.0.1"},
	{"services.*.networks.*.link_local_ips", Refused, "services have the address 127.0.0.1"},
	{"services.*.networks.*.mac_address", Refused, oneNetwork},
	{"services.*.network_mode", Mapped, "bridge, default or service:NAME, which change nothing: " + oneNetwork},
	{"services.*.ports", Mapped, "the ports in the container, which must differ between services; nothing is published"},
	{"services.*.ports.[].target", Mapped, ""},
	{"services.*.ports.[].published", Dropped, "nothing is published"},
	{"services.*.ports.[].host_ip", Dropped, "nothing is published"},
	{"services.*.ports.[].mode", Dropped, "nothing is published"},
	{"services.*.ports.[].name", Dropped, forPeople},
	{"services.*.ports.[].app_protocol", Dropped, forPeople},
	{"services.*.ports.[].protocol", Mapped, "tcp or udp"},
	{"services.*.expose", Mapped, "ports that must differ between services"},
	{"services.*.volumes", Mapped, "named and anonymous volumes; tmpfs; bind: only files of the task, copied"},
	{"services.*.volumes.[].type", Mapped, "volume, tmpfs or bind"},
	{"services.*.volumes.[].source", Mapped, ""},
	{"services.*.volumes.[].target", Mapped, ""},
	{"services.*.volumes.[].read_only", Mapped, ""},
	{"services.*.volumes.[].bind", Mapped, ""},
	{"services.*.volumes.[].volume", Mapped, ""},
	{"services.*.volumes.[].volume.nocopy", Mapped, "the volume starts empty"},
	{"services.*.volumes.[].volume.subpath", Mapped, ""},
	{"services.*.volumes.[].tmpfs", Mapped, ""},
	{"services.*.volumes.[].tmpfs.size", Mapped, ""},
	{"services.*.volumes.[].tmpfs.mode", Mapped, ""},
	{"services.*.volumes.[].consistency", Dropped, "has no effect on Linux"},
	{"services.*.volumes.[].bind.create_host_path", Dropped, "the path must exist in the task"},
	{"services.*.volumes.[].bind.propagation", Refused, cannot},
	{"services.*.volumes.[].bind.recursive", Refused, cannot},
	{"services.*.volumes.[].bind.selinux", Dropped, "the files are copied for the pod alone"},
	{"services.*.volumes.[].image", Refused, "use a service with the image and a named volume"},
	{"services.*.volumes.[].volume.labels", Dropped, forPeople},
	{"services.*.tmpfs", Mapped, "emptyDir in memory"},
	{"services.*.shm_size", Mapped, "emptyDir in memory at /dev/shm"},
	{"services.*.configs", Mapped, ""},
	{"services.*.configs.[].source", Mapped, ""},
	{"services.*.configs.[].target", Mapped, ""},
	{"services.*.configs.[].mode", Mapped, ""},
	{"services.*.configs.[].uid", Refused, "files belong to root"},
	{"services.*.configs.[].gid", Refused, "files belong to root"},
	{"services.*.secrets", Mapped, "below /run/secrets"},
	{"services.*.secrets.[].source", Mapped, ""},
	{"services.*.secrets.[].target", Mapped, ""},
	{"services.*.secrets.[].mode", Mapped, ""},
	{"services.*.secrets.[].uid", Refused, "files belong to root"},
	{"services.*.secrets.[].gid", Refused, "files belong to root"},
	{"services.*.deploy", Mapped, ""},
	{"services.*.deploy.resources", Mapped, "limits and requests of the container"},
	{"services.*.deploy.resources.limits", Mapped, ""},
	{"services.*.deploy.resources.limits.cpus", Mapped, ""},
	{"services.*.deploy.resources.limits.memory", Mapped, ""},
	{"services.*.deploy.resources.reservations", Mapped, ""},
	{"services.*.deploy.resources.reservations.cpus", Mapped, ""},
	{"services.*.deploy.resources.reservations.memory", Mapped, ""},
	{"services.*.deploy.resources.limits.pids", Refused, "the node sets it for the pod"},
	{"services.*.deploy.resources.reservations.devices", Refused, "use environment.gpus of task.toml, for main"},
	{"services.*.deploy.resources.reservations.generic_resources", Refused, "Kubernetes has no such resources"},
	{"services.*.deploy.replicas", Mapped, "1 only: services share one address"},
	{"services.*.deploy.mode", Mapped, "replicated only"},
	{"services.*.deploy.endpoint_mode", Dropped, "without a swarm Compose ignores it"},
	{"services.*.deploy.labels", Dropped, "without a swarm Compose ignores it"},
	{"services.*.deploy.placement", Dropped, "without a swarm Compose ignores it"},
	{"services.*.deploy.restart_policy", Mapped, "overrides `restart`"},
	{"services.*.deploy.restart_policy.condition", Mapped, "none or no condition: a service that ends fails the trial; others: it is started again"},
	{"services.*.deploy.restart_policy.delay", Dropped, "the kubelet's back-off applies"},
	{"services.*.deploy.restart_policy.max_attempts", Dropped, "the kubelet's back-off applies"},
	{"services.*.deploy.restart_policy.window", Dropped, "the kubelet's back-off applies"},
	{"services.*.deploy.rollback_config", Dropped, "without a swarm Compose ignores it"},
	{"services.*.deploy.update_config", Dropped, "without a swarm Compose ignores it"},
	{"services.*.scale", Mapped, "1 only: services share one address"},
	{"services.*.cpus", Mapped, "limit of the container"},
	{"services.*.mem_limit", Mapped, "limit of the container"},
	{"services.*.mem_reservation", Mapped, "request of the container"},
	{"services.*.cap_add", Mapped, "capabilities that Pod Security `baseline` allows"},
	{"services.*.cap_drop", Mapped, "NET_RAW is always dropped"},
	{"services.*.read_only", Mapped, "readOnlyRootFilesystem"},
	{"services.*.security_opt", Mapped, "no-new-privileges only"},
	{"services.*.privileged", Mapped, "false only: " + cannot},
	{"services.*.stdin_open", Mapped, ""},
	{"services.*.tty", Mapped, ""},
	{"services.*.restart", Mapped, "no (the default): a service that ends fails the trial; others: it is started again"},
	{"services.*.profiles", Mapped, "a service with profiles is left out, as Harbor enables none"},
	{"services.*.extends", Mapped, "a service of the same file"},
	{"services.*.extends.service", Mapped, ""},
	{"services.*.extends.file", Refused, "copy the service into this file"},
	{"services.*.pull_policy", Dropped, "use `spec.environment.imagePullPolicy`"},
	{"services.*.pull_refresh_after", Dropped, "use `spec.environment.imagePullPolicy`"},
	{"services.*.init", Dropped, "only reaps processes"},
	{"services.*.attach", Dropped, "all logs are kept"},
	{"services.*.logging", Dropped, "all logs are kept"},
	{"services.*.labels", Dropped, forPeople},
	{"services.*.label_file", Dropped, forPeople},
	{"services.*.annotations", Dropped, forPeople},
	{"services.*.develop", Dropped, "files do not change while a trial runs"},
	{"services.*.stop_grace_period", Dropped, "the pod's grace period applies"},
	{"services.*.stop_signal", Dropped, "the image's applies"},

	{"services.*.platform", Ignored, "the nodes' platform applies; choose nodes of another one with nodeSelector in `spec.environment.podTemplate`"},

	{"services.*.blkio_config", Refused, cgroups},
	{"services.*.cgroup", Refused, noHost},
	{"services.*.cgroup_parent", Refused, noHost},
	{"services.*.cpu_count", Refused, cgroups},
	{"services.*.cpu_percent", Refused, cgroups},
	{"services.*.cpu_period", Refused, cgroups},
	{"services.*.cpu_quota", Refused, cgroups},
	{"services.*.cpu_rt_period", Refused, cgroups},
	{"services.*.cpu_rt_runtime", Refused, cgroups},
	{"services.*.cpu_shares", Refused, cgroups},
	{"services.*.cpuset", Refused, cgroups},
	{"services.*.credential_spec", Refused, "Windows only"},
	{"services.*.device_cgroup_rules", Refused, cannot},
	{"services.*.devices", Refused, cannot},
	{"services.*.dns", Refused, "the pod's DNS applies"},
	{"services.*.dns_opt", Refused, "the pod's DNS applies"},
	{"services.*.dns_search", Refused, "the pod's DNS applies"},
	{"services.*.domainname", Refused, "write the full name as an alias"},
	{"services.*.external_links", Refused, "nothing outside of the trial is linked"},
	{"services.*.gpus", Refused, "use environment.gpus of task.toml, for main"},
	{"services.*.ipc", Refused, noHost},
	{"services.*.isolation", Refused, "Windows only"},
	{"services.*.mac_address", Refused, oneNetwork},
	{"services.*.mem_swappiness", Refused, cgroups},
	{"services.*.memswap_limit", Refused, cgroups},
	{"services.*.models", Refused, "no model runner is part of a trial"},
	{"services.*.oom_kill_disable", Refused, cgroups},
	{"services.*.oom_score_adj", Refused, cgroups},
	{"services.*.pid", Refused, noHost},
	{"services.*.pids_limit", Refused, "the node sets it for the pod"},
	{"services.*.post_start", Refused, "make it a part of the command"},
	{"services.*.pre_start", Refused, "use a service that others wait for with service_completed_successfully"},
	{"services.*.pre_stop", Refused, "use a collect hook of task.toml"},
	{"services.*.provider", Refused, "nothing outside of the trial is started"},
	{"services.*.runtime", Refused, "use runtimeClassName in `spec.environment.podTemplate`"},
	{"services.*.storage_opt", Refused, "use environment.storage_mb of task.toml, for main"},
	{"services.*.sysctls", Refused, "would change the whole pod; use `spec.environment.podTemplate`"},
	{"services.*.ulimits", Refused, "Kubernetes has none for a container; set them in the command"},
	{"services.*.umask", Refused, "set it in the command"},
	{"services.*.use_api_socket", Refused, cannot},
	{"services.*.userns_mode", Refused, noHost},
	{"services.*.uts", Refused, noHost},
	{"services.*.volumes_from", Refused, "use a named volume in both services"},
}

// find returns the row with the longest path that applies to a path in a file, or false if there is none. A row that refuses, drops
// or ignores a key also applies to all keys below it. A row that maps a key applies only to this key, so a key that is new in the
// specification has no row until somebody decides on it.
func find(path []string) (Key, bool) {
	best, length := Key{}, 0
	for _, key := range Keys {
		pattern := strings.Split(key.Path, ".")
		if len(pattern) > length && (len(pattern) == len(path) || key.Outcome != Mapped) && matches(pattern, path) {
			best, length = key, len(pattern)
		}
	}
	return best, length > 0
}

// matches returns whether the pattern matches the path, or a path above it.
func matches(pattern, path []string) bool {
	if len(pattern) > len(path) {
		return false
	}
	for number, part := range pattern {
		if part != "*" && part != path[number] {
			return false
		}
	}
	return true
}
