package api

// TaskList answers GET /v1/tasks.
type TaskList struct {
	Tasks []TaskInfo `json:"tasks"` // in the order of the kernel's list
	More  bool       `json:"more"`  // the guest has more tasks than were read
}

// TaskInfo is a thread of a Linux guest, as the guest reports it. Unknown fields are absent.
type TaskInfo struct {
	PID     int32   `json:"pid"`
	TGID    int32   `json:"tgid"`            // of its process
	Parent  int32   `json:"parent"`          // the TGID of its parent
	NSPID   int32   `json:"nsPid,omitempty"` // PID as in its own PID namespace
	Comm    string  `json:"comm"`
	UID     *uint32 `json:"uid,omitempty"`
	GID     *uint32 `json:"gid,omitempty"`
	Cgroup  uint64  `json:"cgroup,omitempty"`  // number in the cgroup v2 hierarchy
	StartNS uint64  `json:"startNs,omitempty"` // nanoseconds from the boot
	Space   Hex     `json:"space,omitempty"`   // its address space, as ProbeSpec.Space has it; a kernel thread has none
}
