// Decides which volumes, binds, tmpfs, configs and secrets a service can mount, and how.

package main

import (
	"path"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/go-units"
)

const (
	volume = "volume"
	tmpfs  = "tmpfs"
	file   = "file"
)

// mounts returns all mounts of the service.
func (r *reading) mounts(key []string, service types.ServiceConfig) []Mount {
	var found []Mount
	for number, each := range service.Volumes {
		here := append(with(key, "volumes"), strconv.Itoa(number))
		if mount, fine := r.volume(here, service.Name, each); fine {
			found = append(found, mount)
		}
	}
	for number, each := range service.Tmpfs {
		if mount, fine := r.tmpfs(append(with(key, "tmpfs"), strconv.Itoa(number)), each); fine {
			found = append(found, mount)
		}
	}
	for _, each := range service.Configs {
		config := types.FileObjectConfig(r.project.Configs[each.Source])
		reference := types.FileReferenceConfig(each)
		found = r.object(found, []string{"configs", each.Source}, config, reference, "/"+each.Source)
	}
	for _, each := range service.Secrets {
		secret := types.FileObjectConfig(r.project.Secrets[each.Source])
		reference := types.FileReferenceConfig(each)
		if !path.IsAbs(reference.Target) {
			reference.Target = "/run/secrets/" + orElse(reference.Target, each.Source)
		}
		found = r.object(found, []string{"secrets", each.Source}, secret, reference, reference.Target)
	}
	return found
}

func (r *reading) volume(key []string, service string, each types.ServiceVolumeConfig) (Mount, bool) {
	mount := Mount{Kind: each.Type, Source: each.Source, Target: path.Clean(each.Target), ReadOnly: each.ReadOnly, Line: r.file.line(key)}
	if !path.IsAbs(each.Target) || mount.Target == "/" {
		r.file.refuse(key, "must be mounted at an absolute path below /; got %q", each.Target)
		return mount, false
	}
	switch each.Type {
	case volume:
		if each.Volume != nil {
			mount.NoCopy, mount.Subpath = each.Volume.NoCopy, each.Volume.Subpath
		}
		if mount.Subpath != "" && (path.IsAbs(mount.Subpath) || path.Clean(mount.Subpath) != mount.Subpath || strings.HasPrefix(mount.Subpath, "..")) {
			r.file.refuse(key, "volume.subpath must be a plain relative path; got %q", mount.Subpath)
		}
	case tmpfs:
		if each.Tmpfs != nil {
			mount.SizeBytes = int64(each.Tmpfs.Size)
			r.checkMode(key, int64(each.Tmpfs.Mode))
		}
	case types.VolumeTypeBind:
		return r.bind(key, service, mount)
	default:
		r.file.refuse(key, "must be a volume, a tmpfs or a file of the task; got type %q", each.Type)
		return mount, false
	}
	return mount, true
}

// bind returns the mount of a file or directory of the task.
func (r *reading) bind(key []string, service string, mount Mount) (Mount, bool) {
	if strings.HasSuffix(mount.Source, "docker.sock") {
		r.file.refuse(key, "mounts the container engine's socket, which no trial reaches")
		return mount, false
	}
	if strings.HasPrefix(mount.Source, logsOfHarbor) {
		if service != mainService {
			r.file.refuse(key, "shares main's %s with a service: use a named volume and an artifact with service = %q", mount.Target, service)
		}
		return mount, false // the service main has Harbor's log directories without a mount
	}
	place, inside := r.taskPath(key, mount.Source)
	if place == "." {
		r.file.refuse(key, "must not mount the whole task, which has its solution and tests")
	}
	mount.Kind, mount.Source = file, place
	return mount, inside
}

// logsOfHarbor is the prefix of the values that the operator gives the variables HOST_*_PATH, with which older tasks mount main's
// logs.
const logsOfHarbor = "/multistep-logs/"

func (r *reading) tmpfs(key []string, text string) (Mount, bool) {
	target, options, _ := strings.Cut(text, ":")
	mount := Mount{Kind: tmpfs, Target: path.Clean(target), Line: r.file.line(key)}
	if !path.IsAbs(target) || mount.Target == "/" {
		r.file.refuse(key, "must be an absolute path below /; got %q", target)
		return mount, false
	}
	for _, option := range strings.FieldsFunc(options, func(c rune) bool { return c == ',' }) {
		name, value, _ := strings.Cut(option, "=")
		var err error
		switch name {
		case "size":
			mount.SizeBytes, err = units.RAMInBytes(value)
		case "mode":
			var mode int64
			mode, err = strconv.ParseInt(value, 8, 32)
			r.checkMode(key, mode)
		case "rw", "noexec", "exec", "nosuid", "suid", "nodev", "dev": // an emptyDir always has rw, exec, suid and dev
		case "ro":
			mount.ReadOnly = true
		default:
			r.file.refuse(key, "has the option %q, which is not supported; only size and mode are", option)
		}
		if err != nil {
			r.file.refuse(key, "has the option %q, whose value is not valid", option)
		}
	}
	return mount, true
}

// checkMode refuses modes other than 0777 and 1777, because a volume in memory always has mode 1777. A mode of 0 is not set in the
// file.
func (r *reading) checkMode(key []string, mode int64) {
	if mode&^0o1000 != 0o777 && mode != 0 {
		r.file.refuse(key, "must have mode 1777, as a volume in memory has; got %o", mode)
	}
}

// object appends the mount of a config or a secret to a list of mounts.
func (r *reading) object(to []Mount, key []string, object types.FileObjectConfig, reference types.FileReferenceConfig, usual string) []Mount {
	mount := Mount{Kind: file, Target: path.Clean(orElse(reference.Target, usual)), ReadOnly: true, Line: r.file.line(key)}
	if reference.Mode != nil {
		mount.Mode = int64(*reference.Mode)
	}
	if !path.IsAbs(mount.Target) {
		r.file.refuse(key, "must be mounted at an absolute path; got %q", mount.Target)
	}
	if object.Content != "" {
		mount.Content = &object.Content
		return append(to, mount)
	}
	if object.File == "" {
		r.file.refuse(key, "has neither a file nor content")
		return to
	}
	place, inside := r.taskPath(with(key, "file"), object.File)
	if !inside {
		return to
	}
	mount.Source = place
	return append(to, mount)
}
