package api

// GiveFile is the body of POST /v1/files: a copy of a file of a Linux guest, by which its
// code has names, or separate debug information of one, or a file with a part of that (.dwo, .dwp).
type GiveFile struct {
	Path string `json:"path"` // in the guest; it begins with a slash
	Copy []byte `json:"copy"` // the file, or separate debug information with its build ID, of at most 16 MiB
}

// GivenFile is the answer to POST /v1/files.
type GivenFile struct {
	Path      string `json:"path"`              // without symbolic links, where the guest has the file in memory
	BuildID   string `json:"buildId,omitempty"` // hexadecimal digits
	Functions int    `json:"functions"`         // that have names
	Pages     int    `json:"pages"`             // of the file that the guest has in memory, which are as in the copy
	Present   bool   `json:"present"`           // the guest has the file in memory; if not, the daemon looks for it later
	NamesOnly bool   `json:"namesOnly"`         // the copy is separate debug information
}
