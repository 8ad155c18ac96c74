package http

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// options are the daemon's flags.
type options struct {
	guest  string // ELF file, or "" for the built-in guest
	kernel string // of a Linux guest, instead of guest
	initrd string
	// initrdSHA256 is the checksum that initrd must have if a snapshot has named
	// it. Once initrd is read, it is the actual checksum.
	initrdSHA256 string
	symbols      string // file of the kernel's names
	disks        []device.Disk
	net          string
	debug        string   // ELF file with debug information
	beside       []string // files with parts of the debug information
	besideErr    error    // why the image's own files are not known
	slowly       bool
	vcpus        int
	memory       uint64
	maps         uint64 // the host's memory for maps, in bytes
	cmdline      string
	paused       bool
	restore      string // file of a snapshot
	saveOnCrash  string // likewise
	given        func(flag string) bool
	probes       []string
	scripts      []string // files
	tick         time.Duration
	kvm          string // device

	metricsListen    string // address on loopback, or ""
	metricsDurations bool
	webListen        string // address on loopback, of the page

	socket    string
	allowUIDs []uint32
	gid       int // of --group, or -1
	readyFD   int // or -1

	maxConns  int
	maxBodies uint64
	bodyTime  time.Duration
	stallTime time.Duration

	cache       string            // folder, "" for the default, or noCache
	vm          string            // the VMM of the guest, for answers; "": this daemon
	lookAt      VM                // of --vm; without a name: the daemon boots a guest
	scans       *saved.Cache      // of cache; nil: none
	state       string            // folder, or ""
	config      string            // file of flags, or ""
	configured  map[string]string // the line of each flag in the file
	checkConfig bool
	set         *pflag.FlagSet // of all flags

	fleet     fleet.Address // without a URL: no fleet
	fleetName string
	fleetMaps time.Duration
	labels    fleet.Labels

	user        userValue
	noJail      bool
	requireJail bool
	memoryLimit uint64 // bytes; 0: no limit

	logLevel  slog.Level
	logFormat string
	logFile   string

	// Fixed outside tests.
	heartbeat   time.Duration
	endTime     time.Duration // of streams, see there
	timedAtMost int64         // of streams of counts, see there
	writeTime   time.Duration
	timeHits    bool // machine.Config.TimeHits
}

func defaultOptions() options {
	return options{
		vcpus: 1, maps: program.DefaultMemory, tick: machine.DefaultTick,
		maxConns: 512, maxBodies: 64 << 20, bodyTime: 10 * time.Second, stallTime: 30 * time.Second,
		gid: -1, readyFD: -1, logFormat: "text", webListen: "127.0.0.1:0", heartbeat: 15 * time.Second, fleetMaps: fleetMapsEvery, endTime: endTime, writeTime: writeTime, timedAtMost: timedAtMost,
	}
}

// imageName returns the name of the guest's image in listings.
func (o *options) imageName() string {
	switch {
	case o.kernel != "":
		return o.kernel
	case o.guest != "":
		return o.guest
	}
	return "built-in"
}

// flags declares the daemon's flags.
func (o *options) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	o.given, o.set = f.Changed, f
	f.StringVar(&o.config, "config", o.config, "read options from this `file`; flags override it (docs/service.md)")
	f.BoolVar(&o.checkConfig, "check-config", o.checkConfig, "check the flags, --config and the files that they name, and exit")
	o.guestFlags(f)
	f.BoolVar(&o.paused, "paused", o.paused, "stop before the guest's first instruction")
	f.StringVar(&o.restore, "restore", o.restore, "resume the guest from this `file` of 'guestprobe guest save', with its attachments; a guest of --guest is loaded from its former path unless --guest is given")
	f.StringVar(&o.saveOnCrash, "save-on-crash", o.saveOnCrash, "when the guest crashes, or its kernel panics, write it to this `file`, for 'guestprobe --core'; a file that is there is replaced")
	f.StringArrayVar(&o.probes, "probe", o.probes, "attach the probe of this `DEFINITION` before the guest's first instruction; may be repeated")
	f.StringArrayVar(&o.scripts, "script", o.scripts, "run the script in this `file` from the guest's first instruction on, as 'guestprobe run --detach' does, by the file's name without .bt; may be repeated")
	f.DurationVar(&o.tick, "tick", o.tick, "period of the guest's timer interrupt, 0 for none")
	f.StringVar(&o.kvm, "kvm", o.kvm, "KVM `device` (default /dev/kvm)")
	f.Var((*VMName)(&o.lookAt.Name), "vm", "boot no guest, and serve the guest of another VMM, by its `VM`'s pid or name ('guestprobe vms'): it is read-only (docs/vms.md)")
	f.StringVar(&o.lookAt.Image, "vm-image", "", "`file` of that guest's kernel or program")
	f.Uint64Var(&o.lookAt.Slide, "vm-slide", 0, "move the addresses of a program that is not Linux by `N` bytes")
	f.StringVarP(&o.socket, "socket", "s", o.socket, "listen on this `path` (default: $"+api.SocketEnv+"; root "+api.SystemSocket+"; others $XDG_RUNTIME_DIR/guestprobed/guestprobed.sock)")
	f.StringVar(&o.metricsListen, "metrics-listen", o.metricsListen, "serve /metrics to every user of this machine on this loopback `ADDRESS:PORT`, too, such as 127.0.0.1:9105")
	f.BoolVar(&o.metricsDurations, "metrics-durations", o.metricsDurations, "gather histograms of return probes' durations for /metrics: return probes then always produce events")
	f.StringVar(&o.webListen, "web-listen", o.webListen, "serve the page of 'guestprobe web' on this loopback `ADDRESS:PORT`, from its first use on; port 0 is any")
	f.Var((*uidsValue)(&o.allowUIDs), "allow-uid", "serve this user too, beside our own and root; may be repeated")
	f.Var((*groupValue)(&o.gid), "group", "give the socket to this group and serve its members")
	f.IntVar(&o.maxConns, "max-connections", o.maxConns, "serve at most `N` connections at a time; above that, close the connection that has been idle longest")
	f.Var((*sizeValue)(&o.maxBodies), "max-bodies", "room for the bodies of all requests together")
	f.DurationVar(&o.bodyTime, "body-timeout", o.bodyTime, "time limit for receiving a request's body")
	f.DurationVar(&o.stallTime, "stall-timeout", o.stallTime, "end a stream or an answer if its client reads nothing for this `duration`")
	f.StringVar(&o.state, "state", o.state, "keep in this `folder` what clients attach, and attach it again at the next start with it")
	f.StringVar(&o.cache, "cache", o.cache, "keep in this `folder` what the first probe on a kernel finds out about its text, for later guests; \"none\" keeps nothing (default $XDG_CACHE_HOME/guestprobe or ~/.cache/guestprobe, and none with --user)")
	f.IntVar(&o.readyFD, "ready-fd", o.readyFD, "write a line \"ready PATH\" to this file `descriptor` when clients can connect")
	o.fleetFlags(f)
	f.Var(&o.user, "user", "after opening the files that only root may open, become this `USER[:GROUP]`, by names or numbers")
	f.Var((*sizeValue)(&o.memoryLimit), "memory-limit", "reject scripts and attach requests while the daemon's own memory, without the guest's, is above this; a given limit also makes garbage collection work harder, and twice as much ends the daemon (default: 1G and twice the guest's memory, for saved guests)")
	f.BoolVar(&o.requireJail, "require-jail", o.requireJail, "do not start where the kernel cannot confine the daemon in every way (docs/security.md)")
	f.BoolVar(&o.noJail, "no-jail", o.noJail, "do not confine the daemon, to debug it")
	f.Var((*levelValue)(&o.logLevel), "log-level", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", o.logFormat, "`format` of the log, text or json")
	f.StringVar(&o.logFile, "log-file", o.logFile, "append the log to this `file` instead of standard error")
	command.MarkSeveral(f, "label")
	command.MarkSeveral(f, "allow-uid")
}

// check rejects values that no flag's own parser could reject, and fills in
// options that depend on others.
func (o *options) check() error {
	if err := o.checkVM(); err != nil {
		return err
	}
	switch {
	case o.memory != 0:
	case o.kernel != "":
		o.memory = machine.DefaultLinuxMemory
	default:
		o.memory = machine.DefaultMemory
	}
	if o.kernel != "" {
		o.tick = 0 // it has timers of its own
	}
	linux := o.kernel != "" || o.restore != "" // a snapshot may be of one
	switch {
	case o.vcpus < 1 || o.vcpus > guest.MaxVCPUs:
		return command.Usagef("--vcpus %d: not in 1 to %d", o.vcpus, guest.MaxVCPUs)
	case o.memory == 0 || o.memory%guest.PageSize != 0 || o.memory > guest.MaxRAM:
		advice := ""
		if o.memory > 0 && o.memory < guest.PageSize { // megabytes, as for other VMMs
			advice = fmt.Sprintf(": did you mean %dM?", o.memory)
		}
		return command.Usagef("--memory %s: not a multiple of %s from %[2]s to %s%s", formatSize(o.memory), formatSize(guest.PageSize), formatSize(guest.MaxRAM), advice)
	case o.maps == 0 || o.maps > guest.MaxRAM:
		return command.Usagef("--map-memory %s: not in 1 to %s", formatSize(o.maps), formatSize(guest.MaxRAM))
	case o.tick < 0 || o.tick > 0 && o.tick < machine.MinTick:
		return command.Usagef("--tick %v: neither 0 nor at least %v", o.tick, machine.MinTick)
	case o.logFormat != "text" && o.logFormat != "json":
		return command.Usagef("--log-format %q: not text or json", o.logFormat)
	case o.maxConns < 1:
		return command.Usagef("--max-connections %d: not at least 1", o.maxConns)
	case o.maxBodies < maxFileBody:
		return command.Usagef("--max-bodies %s: not at least %s, the largest body", formatSize(o.maxBodies), formatSize(maxFileBody))
	case o.bodyTime <= 0:
		return command.Usagef("--body-timeout %v: not above 0", o.bodyTime)
	case o.stallTime <= 0:
		return command.Usagef("--stall-timeout %v: not above 0", o.stallTime)
	case len(o.cmdline) > guest.MaxCmdline:
		return command.Usagef("--cmdline: %d bytes, more than %d", len(o.cmdline), guest.MaxCmdline)
	case strings.IndexByte(o.cmdline, 0) >= 0:
		return command.Usagef("--cmdline: contains a NUL byte")
	case o.kernel != "" && o.guest != "":
		return command.Usagef("--kernel and --guest: a guest boots one of them")
	case !linux && o.initrd != "":
		return command.Usagef("--initrd: goes with --kernel")
	case !linux && o.symbols != "":
		return command.Usagef("--symbols: goes with --kernel")
	case !linux && len(o.disks) > 0:
		return command.Usagef("--disk: goes with --kernel")
	case len(o.disks) > device.MaxDisks:
		return command.Usagef("--disk: %d disks, more than %d", len(o.disks), device.MaxDisks)
	case o.net != "":
		return command.Usagef("--net: guests have no network: there is no virtio-net, over tap or otherwise; give files by --initrd or --disk, and talk to the guest by 'guestprobe guest console -i'")
	case o.metricsListen != "" && loopbackFault(o.metricsListen) != "":
		return command.Usagef("--metrics-listen %s: %s", o.metricsListen, loopbackFault(o.metricsListen))
	case loopbackFault(o.webListen) != "":
		return command.Usagef("--web-listen %s: %s", o.webListen, loopbackFault(o.webListen))
	case o.socket != "":
		path, err := api.ParseSocket(o.socket)
		if err != nil {
			return command.Usagef("--socket: %w", err)
		}
		o.socket = filepath.Clean(path)
	}
	return cmp.Or(o.checkFleet(), o.checkSaveOnCrash(), o.checkJail())
}

// disksValue is a flag that adds a disk each time.
type disksValue []device.Disk

// String writes the disks as they are given.
func (v *disksValue) String() string {
	var out []string
	for _, d := range *v {
		out = append(out, d.String())
	}
	return strings.Join(out, " ")
}

// Set adds a disk.
func (v *disksValue) Set(s string) error {
	d := device.Disk{}
	d.Path, d.ReadOnly = strings.CutSuffix(s, ",ro")
	if d.Path == "" {
		return errors.New("no file")
	}
	*v = append(*v, d)
	return nil
}

// Type names the argument in help texts.
func (v *disksValue) Type() string { return "FILE[,ro]" }

// sizeValue is a flag that takes a size.
type sizeValue uint64

// String writes the size with its unit.
func (v *sizeValue) String() string {
	if *v == 0 {
		return "" // no default
	}
	return formatSize(uint64(*v))
}

// Set parses a size.
func (v *sizeValue) Set(s string) error {
	n, err := parseSize(s)
	*v = sizeValue(n)
	return err
}

// Type names the flag's value in help texts.
func (v *sizeValue) Type() string { return "size" }

// levelValue is a flag that takes a log level.
type levelValue slog.Level

// String writes the level as Set takes it.
func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }

// Set parses a level.
func (v *levelValue) Set(s string) error {
	l, ok := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}[s]
	if !ok {
		return errors.New("not debug, info, warn or error")
	}
	*v = levelValue(l)
	return nil
}

// Type names the flag's value in help texts.
func (v *levelValue) Type() string { return "level" }

// uidsValue is a flag that collects users.
type uidsValue []uint32

// String lists the users.
func (v *uidsValue) String() string {
	var s []string
	for _, u := range *v {
		s = append(s, strconv.FormatUint(uint64(u), 10))
	}
	return strings.Join(s, ",")
}

// Set adds one user, by number or name.
func (v *uidsValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		u, lerr := user.Lookup(s)
		if lerr != nil {
			return fmt.Errorf("no user %q", s)
		}
		if n, err = strconv.ParseUint(u.Uid, 10, 32); err != nil {
			return err
		}
	}
	*v = append(*v, uint32(n))
	return nil
}

// Type names the flag's value in help texts.
func (v *uidsValue) Type() string { return "user" }

// groupValue is a flag that takes a group.
type groupValue int

// String writes the group's number, or nothing for none.
func (v *groupValue) String() string {
	if *v < 0 {
		return ""
	}
	return strconv.Itoa(int(*v))
}

// Set parses a group, by number or name.
func (v *groupValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		g, lerr := user.LookupGroup(s)
		if lerr != nil {
			return fmt.Errorf("no group %q", s)
		}
		if n, err = strconv.ParseUint(g.Gid, 10, 31); err != nil {
			return err
		}
	}
	*v = groupValue(n)
	return nil
}

// Type names the flag's value in help texts.
func (v *groupValue) Type() string { return "group" }

// limits are the limits that a reload may change.
type limits struct {
	conns    int           // connections
	bodies   int64         // bytes of all bodies together
	bodyTime time.Duration // for a body to come
	stall    time.Duration // for a client to read some of an answer
}

// limits returns the limits in the options.
func (o *options) limits() *limits {
	return &limits{conns: o.maxConns, bodies: int64(o.maxBodies), bodyTime: o.bodyTime, stall: o.stallTime}
}
