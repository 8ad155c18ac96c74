package http

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/jail"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// minMemoryLimit is the least value of --memory-limit: enough for a daemon with
// a small guest and a few scripts.
const minMemoryLimit = 128 << 20

// spareDescriptors are the descriptors that the daemon needs in addition to
// connections: for KVM, disks, listening sockets, and files that are open for a
// moment.
const spareDescriptors = 1024

// jailer confines the process, as jail.Enter does.
type jailer func(jail.Config) (jail.Report, error)

// checkJail rejects flags that do not go together.
func (o *options) checkJail() error {
	switch {
	case o.noJail && o.requireJail:
		return command.Usagef("--no-jail and --require-jail: one of them")
	case o.noJail && o.user.asked != "":
		return command.Usagef("--no-jail: it leaves the user as it is; leave --user out")
	case o.user.asked != "" && os.Geteuid() != 0 && o.user.UID != os.Geteuid():
		return command.Usagef("--user %s: only root can become another user; start guestprobed as that user", o.user.asked)
	case o.memoryLimit != 0 && o.memoryLimit < minMemoryLimit:
		return command.Usagef("--memory-limit %s: not at least %s", formatSize(o.memoryLimit), formatSize(minMemoryLimit))
	}
	return nil
}

// confine drops the privileges that the daemon no longer needs. By then all
// files are open, no guest has run, and no client is served yet.
func (s *server) confine(enter jailer, sock, debuggers *socket, prog bootable) error {
	s.jail = &api.Jail{}
	switch {
	case s.opt.noJail:
		s.log.Warn("not confined: --no-jail")
		return nil
	case enter == nil && (s.opt.requireJail || s.opt.user.asked != ""):
		return errors.New("the daemon is in another program's process, which it cannot confine: start guestprobed")
	case enter == nil:
		return nil
	}
	c, err := s.jailConfig(sock, prog)
	if err != nil {
		return err
	}
	if s.opt.user.asked != "" {
		if err := s.give(sock, debuggers); err != nil {
			return err
		}
		c.User = &s.opt.user.User
	}
	_ = time.Now().String() // the zone's file is read at the first use
	r, err := enter(c)
	if err != nil {
		return fmt.Errorf("confine the daemon: %w (--no-jail goes without)", err)
	}
	s.access.self = uint32(r.User)
	s.jail = &api.Jail{Confined: true, User: r.User, Group: r.Group, Capabilities: r.Capabilities, Landlock: r.Landlock, Network: r.Network, Seccomp: r.Seccomp, Missing: r.Missing}
	if !r.Complete() {
		if s.opt.requireJail {
			return fmt.Errorf("--require-jail: %s", strings.Join(r.Missing, "; "))
		}
		s.log.Warn("this kernel cannot confine all of the daemon", "missing", strings.Join(r.Missing, "; "))
	}
	s.log.Info("confined", "user", r.User, "group", r.Group, "landlock", r.Landlock, "seccomp", r.Seccomp)
	return s.checkAccess()
}

// jailConfig returns the files and sockets that the daemon still opens while it
// runs. Requests cannot name any of them: all come from the user who has started
// the daemon.
func (s *server) jailConfig(sock *socket, prog bootable) (jail.Config, error) {
	o := s.opt
	c := jail.Config{Group: o.gid, Descriptors: uint64(2*o.maxConns + spareDescriptors)}
	f := &c.Files
	f.List = []string{"/proc/self"} // descriptors, memory, threads; which of the guest's pages were touched
	f.Read = []string{"/proc/sys/net/core/somaxconn"}
	// The files for names of users, groups and servers are replaced when they
	// change, so allow their folder.
	if o.gid >= 0 || o.config != "" || o.fleet.URL != "" {
		f.Read = append(f.Read, "/etc")
	}
	if o.config != "" { // editors replace the file
		f.Read = append(f.Read, folders(o.config)...)
	}
	if o.debug != "" {
		f.Read = append(f.Read, o.debug)
	}
	f.Read = append(f.Read, o.beside...)
	if o.kernel != "" && prog.linux != nil {
		f.Read = append(f.Read, kernelConfig(o.kernel, prog.linux.Kernel.Version))
	}
	for _, d := range o.disks { // opened again when the guest is reset
		if d.ReadOnly {
			f.Read = append(f.Read, d.Path)
		} else {
			f.Write = append(f.Write, d.Path)
		}
	}
	if o.logFile != "" && o.config != "" { // opened again at SIGHUP
		for _, dir := range folders(o.logFile) {
			f.Append = append(f.Append, dir)
		}
	}
	if o.state != "" {
		f.Make = append(f.Make, o.state)
	}
	if o.scans != nil {
		f.Make = append(f.Make, o.scans.Dir())
	}
	if o.saveOnCrash != "" {
		dirs := folders(o.saveOnCrash)
		f.Make = append(f.Make, dirs[len(dirs)-1])
	}
	f.Remove = append(f.Remove, filepath.Dir(sock.path)) // sockets, and their locks
	f.Dial = append(f.Dial, filepath.Dir(sock.path))     // the watchdog, and a debugger's commands
	if path := s.manager.Path(); strings.HasPrefix(path, "/") {
		f.Dial = append(f.Dial, path)
	} else {
		c.Net.Abstract = path != ""
	}
	if o.fleet.URL != "" {
		c.Net.Dial = true
		for _, file := range o.fleet.Files() { // the files are replaced when they are renewed
			f.Read = append(f.Read, folders(file)...)
		}
		f.Read = append(f.Read, folders("/etc/resolv.conf")...) // a link, if the network's manager writes it
		f.Read = append(f.Read, "/run/systemd/resolve", "/usr/share/ca-certificates", "/etc/ssl", "/etc/pki")
		f.List = append(f.List, "/etc/ssl/certs", "/etc/pki/tls/certs")
	}
	// The page listens at its first use; and Go finds out which protocols exist on
	// a free port.
	_, port, _ := net.SplitHostPort(o.webListen)
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return c, command.Usagef("--web-listen %s: %w", o.webListen, err)
	}
	c.Net.Listen = []uint16{0, uint16(n)}
	if n > 0 && n < 1024 {
		c.Keep = append(c.Keep, unix.CAP_NET_BIND_SERVICE)
	}
	if o.memoryLimit != 0 {
		debug.SetMemoryLimit(int64(o.memoryLimit))
		has, err := privateMemory()
		if err != nil {
			return c, fmt.Errorf("--memory-limit: %w", err)
		}
		c.Data = has + 2*o.memoryLimit
	}
	return c, nil
}

// folders returns the folders from which a file may have to be opened again: its
// own, and the folder of the file that it links to.
func folders(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(real) != dirs[0] {
		dirs = append(dirs, filepath.Dir(real))
	}
	return dirs
}

// give makes the user of --user the owner of the files that the daemon has
// created for others: the sockets, and the folder of --state. Locks stay root's,
// because root takes them at the next start.
func (s *server) give(socks ...*socket) error {
	u := s.opt.user
	for _, sock := range socks {
		if sock == nil || sock.given {
			continue
		}
		gid := s.opt.gid
		if gid < 0 {
			gid = u.GID
		}
		if err := os.Lchown(sock.path, u.UID, gid); err != nil {
			return fmt.Errorf("--user: %w", err)
		}
		sock.handed = true
	}
	dirs := []string{s.opt.state}
	if s.opt.scans != nil {
		dirs = append(dirs, s.opt.scans.Dir())
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if err := os.Chown(dir, u.UID, u.GID); err != nil {
			return fmt.Errorf("--user: %w", err)
		}
	}
	return nil
}

// checkAccess checks that the daemon's present user may use the files that the
// daemon may still need.
func (s *server) checkAccess() error {
	dirs := []struct{ flag, dir string }{{"--state", s.opt.state}}
	if s.opt.saveOnCrash != "" {
		dirs = append(dirs, struct{ flag, dir string }{"--save-on-crash", filepath.Dir(s.opt.saveOnCrash)})
	}
	for _, d := range dirs {
		if d.dir == "" {
			continue
		}
		if err := unix.Access(d.dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("%s: user %d may not make files in %s: %w", d.flag, os.Geteuid(), d.dir, err)
		}
	}
	for _, d := range s.opt.disks {
		mode := uint32(unix.R_OK | unix.W_OK)
		if d.ReadOnly {
			mode = unix.R_OK
		}
		if err := unix.Access(d.Path, mode); err != nil {
			s.log.Warn("a reset of the guest will fail: it opens the disk again", "disk", d.Path, "user", os.Geteuid(), "err", err)
		}
	}
	return nil
}

// privateMemory returns how much private memory the process has, as RLIMIT_DATA
// counts it: guest memory and Go's memory.
func privateMemory() (uint64, error) {
	kb, err := statusField("VmData")
	return kb << 10, err
}

// userValue is a flag that takes a user, as NAME or UID, optionally followed by
// a colon and a group.
type userValue struct {
	jail.User
	asked string
}

// String returns the user as it was given.
func (v *userValue) String() string { return v.asked }

// Set looks the user up.
func (v *userValue) Set(s string) error {
	name, group, has := strings.Cut(s, ":")
	found, err := user.Lookup(name)
	if id, nerr := strconv.ParseUint(name, 10, 31); nerr == nil {
		v.UID = int(id)
		found, err = user.LookupId(name)
	} else if err != nil {
		return fmt.Errorf("no user %q", name)
	}
	v.Groups, v.GID = nil, -1
	if err == nil {
		if v.UID, err = strconv.Atoi(found.Uid); err != nil {
			return err
		}
		if v.GID, err = strconv.Atoi(found.Gid); err != nil {
			return err
		}
		ids, err := found.GroupIds()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil && !slices.Contains(v.Groups, n) {
				v.Groups = append(v.Groups, n)
			}
		}
	}
	if has {
		if err := (*groupValue)(&v.GID).Set(group); err != nil {
			return err
		}
	}
	if v.GID < 0 {
		return fmt.Errorf("there is no user with number %s: say a group as well, %[1]s:GROUP", name)
	}
	v.asked = s
	return nil
}

// Type names the flag's value in help texts.
func (v *userValue) Type() string { return "user" }

// ownMemory returns the most memory that the daemon's heap may have before requests are rejected.
func (o *options) ownMemory() uint64 {
	if o.memoryLimit != 0 {
		return o.memoryLimit
	}
	return 1<<30 + 2*o.memory
}
