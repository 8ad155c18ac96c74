package api

// Guest answers GET /v1/guest and every change of its state.
type Guest struct {
	// VM is the process of the VMM that runs the guest, and how it is reached, for
	// the guest of another VMM (--vm). Then boots, cmdline, tickUs, checks, exitCode
	// and the counts of vCPUs are not known, and 0.
	VM string `json:"vm,omitempty"`

	State    string `json:"state" openapi:"enum=created|running|paused|exited|crashed|closed"` // created, running, paused, exited, crashed or closed
	ExitCode *int64 `json:"exitCode,omitempty"`                                                // of state exited
	Crash    *Crash `json:"crash,omitempty"`                                                   // of state crashed
	Boots    int    `json:"boots"`                                                             // 1, and one more for each reset

	Image   string `json:"image"`  // file, or "built-in"
	SHA256  string `json:"sha256"` // of the image file
	BuildID string `json:"buildId,omitempty"`
	Entry   Hex    `json:"entry"`
	VCPUs   int    `json:"vcpus"`
	Memory  uint64 `json:"memory"` // bytes of RAM
	Cmdline string `json:"cmdline"`
	TickUS  int64  `json:"tickUs"` // timer period in microseconds; 0: no timer

	LogLinesLost uint64    `json:"logLinesLost"` // by the daemon, because the log could not be written
	Probes       int       `json:"probes"`
	Enabled      bool      `json:"enabled"` // the global knob
	Checks       uint64    `json:"checks"`  // wrong results that the guest's self-check has reported
	CPUs         []CPUInfo `json:"cpus"`

	Kernel *Kernel `json:"kernel,omitempty"` // of a Linux guest
	Jail   *Jail   `json:"jail,omitempty"`   // of the daemon's process; a saved guest has none
}

// Jail says which rights the daemon's process has dropped at its start.
type Jail struct {
	Confined     bool     `json:"confined"`               // false: the process has kept everything (--no-jail)
	User         int      `json:"user"`                   // the user that the process runs as
	Group        int      `json:"group"`                  // its group
	Capabilities []string `json:"capabilities,omitempty"` // that it still has
	Landlock     int      `json:"landlock"`               // version of the kernel's Landlock ABI that confines files; 0: files are not confined
	Network      bool     `json:"network"`                // TCP is confined
	Seccomp      bool     `json:"seccomp"`                // system calls are confined
	Missing      []string `json:"missing,omitempty"`      // features that this kernel lacks
}

// Kernel is the kernel of a Linux guest.
type Kernel struct {
	Version string `json:"version"`

	// Its progress by its own system_state: booting, scheduling, freeing or running; or panicked: a CPU is in its
	// panic_cpu; replaced: another kernel runs (kexec), or its memory was replaced by a hibernated kernel's;
	// hibernated: its memory was put aside. Absent if the kernel has no symbols that say it.
	System  string   `json:"system,omitempty" openapi:"enum=booting|scheduling|freeing|running|panicked|replaced|hibernated"`
	Panic   string   `json:"panic,omitempty"`                            // of system panicked: the text on its console, as far as it has been written
	Slide   Hex      `json:"slide"`                                      // its addresses minus those that it was linked for
	Checked []string `json:"checked,omitempty" openapi:"enum=LSTAR|IDT"` // how the running kernel confirms the slide: LSTAR, IDT
	Missing []string `json:"missing,omitempty"`                          // facts that are not known of it, and the features that do not work for that reason
}

// CPUInfo is one vCPU of the guest. A reset does not clear its counts.
type CPUInfo struct {
	CPU    int    `json:"cpu"`
	State  string `json:"state" openapi:"enum=running|idle|halted|stopped|parked"` // running, idle, halted, stopped or parked
	RIP    Hex    `json:"rip,omitempty"`                                           // where it is, unless it is running
	Symbol string `json:"symbol,omitempty"`                                        // of RIP, with offset
	Space  Hex    `json:"space,omitempty"`                                         // its address space then, as ProbeSpec.Space has it

	Stop *Stop `json:"stop,omitempty"` // the probe that has stopped it

	Exits     map[string]uint64 `json:"exits"` // VM exits by reason
	Total     uint64            `json:"total"` // all VM exits
	Hits      uint64            `json:"hits"`  // breakpoints that belonged to probes
	TrapExits uint64            `json:"trapExits"`
	Foreign   uint64            `json:"foreign"` // breakpoints that were the guest's own
	InPlace   uint64            `json:"inPlace"` // instructions stepped with the world stopped
	Ticks     uint64            `json:"ticks"`   // timer interrupts
}

// Crash describes an end that the guest did not ask for.
type Crash struct {
	CPU      int            `json:"cpu"`
	Kind     string         `json:"kind" openapi:"enum=triple_fault|emulation|internal|entry|breakpoint|host|exit"` // triple_fault, emulation, internal, entry, breakpoint, host or exit
	Reason   string         `json:"reason"`                                                                         // one line
	RIP      Hex            `json:"rip"`
	Symbol   string         `json:"symbol,omitempty"`   // of RIP, with offset
	RegsLost bool           `json:"regsLost,omitempty"` // the host had reset the registers before it reported
	Regs     map[string]Hex `json:"regs,omitempty"`
	Code     []string       `json:"code,omitempty"` // disassembly around RIP
	Report   string         `json:"report"`         // all of it, in lines for people
}

// SnapshotType is the type of the answer to POST /v1/guest/save, and of the body of POST /v1/snapshots: a file as
// kvm/snapshot has it.
const SnapshotType = "application/octet-stream"

// Snapshot is the body of the answer to POST /v1/snapshots.
type Snapshot struct {
	ID     string `json:"id"` // for ResetGuest.To
	VCPUs  int    `json:"vcpus"`
	Memory uint64 `json:"memory"` // bytes of RAM
	Bytes  int    `json:"bytes"`  // of memory that are in the file
}

// ResetGuest is the body of POST /v1/guest/reset.
type ResetGuest struct {
	Paused bool   `json:"paused,omitempty"` // stop before the first instruction
	To     string `json:"to,omitempty"`     // the ID of the snapshot to restore; without it the guest boots again
}

// Call is the body of POST /v1/guest/call. Exactly one of Symbol and Addr says
// which function.
type Call struct {
	Symbol    string `json:"symbol,omitempty"`
	Addr      Hex    `json:"addr,omitempty"`
	Args      []Hex  `json:"args,omitempty" openapi:"maxItems=6"`                                // at most 6
	TimeoutMS *int   `json:"timeoutMs,omitempty" openapi:"minimum=1,maximum=60000,default=5000"` // 1 to 60000; nil means 5000
}

// MaxInput is how many bytes one ConsoleInput may have.
const MaxInput = 64 << 10

// ConsoleInput is typed at the guest's console: Text or Bytes.
type ConsoleInput struct {
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"` // instead of Text, as base64; either has 1 to MaxInput bytes
}

// ConsoleTaken is the part of the input for which the guest's device had room within a second.
type ConsoleTaken struct {
	Taken int `json:"taken"` // bytes of the input, from its beginning
}

// CallResult is what the function returned in RAX.
type CallResult struct {
	Ret   Hex   `json:"ret"`
	Value int64 `json:"value"` // Ret as a signed number
}

// Text compares the guest's executable segments, as they are in its memory now, with the image. If a kernel patches
// itself, the image has these patches too.
type Text struct {
	Identical bool        `json:"identical"`
	Bytes     uint64      `json:"bytes"`
	Live      string      `json:"live"`  // SHA-256 over the live bytes in address order
	Image     string      `json:"image"` // SHA-256 over the image's bytes
	Ranges    []TextRange `json:"ranges"`
}

// TextRange is one run of bytes that differ.
type TextRange struct {
	Addr   Hex    `json:"addr"`
	Symbol string `json:"symbol,omitempty"`
	Live   string `json:"live"`  // hexadecimal
	Image  string `json:"image"` // hexadecimal

	// TextProbe: guestprobe's; TextGuest: of a kprobe of the guest's own, which is not counted as a difference;
	// TextOther: of unknown origin.
	By string `json:"by" openapi:"enum=probe|guest|other"`
}

// Whose bytes a TextRange has.
const (
	TextProbe = "probe" // guestprobe's
	TextGuest = "guest" // a kprobe of the guest's own, which is no difference
	TextOther = "other" // of unknown origin
)

// SymbolList answers GET /v1/symbols.
type SymbolList struct {
	Symbols []Symbol `json:"symbols"`
	More    bool     `json:"more"` // the limit cut the list off
}

// Symbol is one name of the guest's image.
type Symbol struct {
	Name      string `json:"name"`
	Demangled string `json:"demangled,omitempty"` // its name in the source, if the compiler mangles names (C++, Rust)
	Addr      Hex    `json:"addr"`
	Size      uint64 `json:"size"`
	Kind      string `json:"kind" openapi:"enum=func|data|other"` // func, data or other
	Global    bool   `json:"global"`
	User      bool   `json:"user"`
	Section   string `json:"section,omitempty"`
	Blacklist string `json:"blacklist,omitempty"` // why it cannot be probed

	Prototype *Prototype `json:"prototype,omitempty"` // of a function, if types were asked for and are known
}

// Prototype says how a function is declared, in the words of C.
type Prototype struct {
	Text    string      `json:"text"` // the whole declaration: vfs_read(struct file *file, char *buf) -> ssize_t
	Params  []Parameter `json:"params"`
	Returns string      `json:"returns"`
}

// Parameter is one parameter of a function.
type Parameter struct {
	Name string `json:"name"` // empty if it has no name
	Type string `json:"type"` // "..." for any number of further ones
}
