package users

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// User is the user as which a command runs.
type User struct {
	UID, GID   int
	Groups     []int
	Name, Home string
	Own        bool // whether this is PID 1's own user, so that a command keeps PID 1's credentials, including its groups
}

// String returns the user's name and IDs for an error message.
func (u User) String() string {
	if u.Name == "" {
		return fmt.Sprintf("%d:%d", u.UID, u.GID)
	}
	return fmt.Sprintf("%q (%d:%d)", u.Name, u.UID, u.GID)
}

// Become switches this process to the user. A root process thereby loses all capabilities, unless the user is also root.
func (u User) Become() error {
	if u.Own || (os.Getuid() != 0 && u.UID == os.Getuid() && u.GID == os.Getgid()) {
		return nil
	}
	if err := syscall.Setgroups(u.Groups); err != nil {
		return err
	}
	if err := syscall.Setgid(u.GID); err != nil {
		return err
	}
	return syscall.Setuid(u.UID)
}

// NoSuchUser is the error for a name that is missing from /etc/passwd or /etc/group.
type NoSuchUser struct{ message string }

func (e NoSuchUser) Error() string { return e.message }

// Database has the paths of the passwd file and the group file.
type Database struct{ Passwd, Group string }

// System is the image's user database.
var System = Database{"/etc/passwd", "/etc/group"}

const (
	maxFileBytes = 16 << 20
	maxID        = 1<<32 - 2 // for the kernel, the next ID means "unchanged"
)

// Own returns the user of this process.
func (d Database) Own() User {
	user := User{UID: os.Getuid(), GID: os.Getgid(), Home: "/", Own: true}
	if entry, found := d.byID(user.UID); found {
		user.Name, user.Home = entry.Name, entry.Home
	}
	return user
}

// Lookup returns the user for "name", "uid", "name:group" or "uid:gid". "" is the user of this process. As in an image's USER, a
// named group replaces all groups from /etc/group.
func (d Database) Lookup(spec string) (User, error) {
	if spec == "" {
		return d.Own(), nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	user, err := d.user(name)
	if err != nil {
		return User{}, err
	}
	if !hasGroup {
		user.Groups = d.groupsOf(user)
		return user, nil
	}
	user.GID, err = d.group(group)
	user.Groups = []int{user.GID}
	return user, err
}

func (d Database) user(name string) (User, error) {
	if user, found := d.find(func(u User) bool { return u.Name == name }); found {
		return user, nil
	}
	uid, err := parseID(name)
	if err != nil {
		return User{}, NoSuchUser{fmt.Sprintf("%s has no user %q", d.Passwd, name)}
	}
	if user, found := d.byID(uid); found {
		return user, nil
	}
	return User{UID: uid, Home: "/"}, nil
}

func (d Database) byID(uid int) (User, bool) {
	return d.find(func(u User) bool { return u.UID == uid })
}

// find returns the first entry of /etc/passwd for which fits returns true.
func (d Database) find(fits func(User) bool) (user User, found bool) {
	eachLine(d.Passwd, func(fields []string) bool {
		if len(fields) < 6 || fields[0] == "" {
			return true
		}
		uid, err1 := parseID(fields[2])
		gid, err2 := parseID(fields[3])
		user = User{UID: uid, GID: gid, Name: fields[0], Home: fields[5]}
		if user.Home == "" {
			user.Home = "/"
		}
		found = err1 == nil && err2 == nil && fits(user)
		return !found
	})
	if !found {
		return User{}, false
	}
	return user, true
}

func (d Database) group(name string) (int, error) {
	gid, err := parseID(name)
	eachLine(d.Group, func(fields []string) bool {
		if len(fields) < 3 || fields[0] != name {
			return true
		}
		gid, err = parseID(fields[2])
		return false
	})
	if err != nil {
		return 0, NoSuchUser{fmt.Sprintf("%s has no group %q", d.Group, name)}
	}
	return gid, nil
}

func parseID(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err == nil && id > maxID {
		err = strconv.ErrRange
	}
	return int(id), err
}

// groupsOf returns the user's primary group, and the groups of which the user is a member in /etc/group.
func (d Database) groupsOf(user User) []int {
	groups := []int{user.GID}
	eachLine(d.Group, func(fields []string) bool {
		if len(fields) < 4 || user.Name == "" || !slices.Contains(strings.Split(fields[3], ","), user.Name) {
			return true
		}
		if gid, err := parseID(fields[2]); err == nil && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
		return true
	})
	return groups
}

// eachLine calls use with the fields of each line of a file, until use returns false.
func eachLine(path string, use func(fields []string) bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO at this path must not block PID 1
	if err != nil {
		return
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	lines := bufio.NewScanner(io.LimitReader(file, maxFileBytes))
	lines.Buffer(nil, 1<<20) // lines can be long, because a group may have many members
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line != "" && line[0] != '#' && !use(strings.Split(line, ":")) {
			return
		}
	}
}
