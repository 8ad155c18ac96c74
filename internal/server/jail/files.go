package jail

import (
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Files are the files that may still be opened. A name means the file that has
// it when the jail is entered: a file that replaces it later is a different one.
// Names that do not exist are ignored.
type Files struct {
	Read   []string // files, and all files below folders
	List   []string // folders that may also be listed, with everything below
	Write  []string // files that are read and overwritten in place
	Make   []string // folders in which files are read, created, written, replaced and removed
	Append []string // folders in which files are created and written, but not read
	Remove []string // folders in which files are removed
	Dial   []string // folders of unix sockets to connect to
}

// Net is the part of TCP that stays allowed.
type Net struct {
	Dial   bool     // connections to anywhere
	Listen []uint16 // ports; 0: any free one
	// Abstract lets the process connect to abstract unix sockets of others.
	Abstract bool
}

// The rights for each field of Files, in Landlock's terms.
const (
	fsRead   = ll.AccessFSReadFile
	fsList   = fsRead | ll.AccessFSReadDir
	fsWrite  = fsRead | ll.AccessFSWriteFile
	fsMake   = fsList | fsWrite | ll.AccessFSTruncate | ll.AccessFSMakeReg | ll.AccessFSRemoveFile
	fsAppend = ll.AccessFSWriteFile | ll.AccessFSMakeReg
	fsAll    = 1<<17 - 1 // of ABI 9
	// filesOnly are the rights that a rule for a file may have.
	filesOnly = fsRead | fsWrite | ll.AccessFSTruncate
)

// Versions of the ABI.
const (
	abiNetwork = 4
	abiUnix    = 9
)

// landlockABI returns the kernel's version of Landlock, or 0 without Landlock.
func landlockABI() int {
	v, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return v
}

// restrictFiles restricts files and network with Landlock, as far as the kernel
// supports it.
func restrictFiles(f Files, n Net, r *Report) error {
	abi := landlockABI()
	if abi == 0 {
		r.Missing = append(r.Missing, "files and network are not confined: the kernel has no Landlock, or was booted without")
		return nil
	}
	var rules []landlock.Rule
	for _, x := range []struct {
		paths  []string
		access landlock.AccessFSSet
	}{{f.Read, fsRead}, {f.List, fsList}, {f.Write, fsWrite}, {f.Make, fsMake}, {f.Append, fsAppend}, {f.Remove, ll.AccessFSRemoveFile}, {f.Dial, ll.AccessFSResolveUnix}} {
		for _, path := range x.paths {
			access := x.access
			if st, err := os.Stat(path); err != nil {
				continue
			} else if !st.IsDir() {
				access &= filesOnly
			}
			if access != 0 {
				rules = append(rules, landlock.PathAccess(access, path).IgnoreIfMissing())
			}
		}
	}
	net := landlock.AccessNetSet(ll.AccessNetBindTCP)
	if !n.Dial {
		net |= ll.AccessNetConnectTCP
	}
	for _, port := range n.Listen {
		rules = append(rules, landlock.BindTCP(port))
	}
	// Signals need no scope: the filter restricts them to our own process. With a
	// scope, kernels up to 6.14 treat each thread as a domain of its own, so the
	// runtime's signals would not reach other threads.
	var scopes landlock.ScopedSet
	if !n.Abstract {
		scopes = ll.ScopeAbstractUnixSocket
	}
	c, err := landlock.NewConfig(landlock.AccessFSSet(fsAll), net, scopes)
	if err != nil {
		return err
	}
	if err := c.BestEffort().Restrict(rules...); err != nil {
		return err
	}
	r.Landlock, r.Network = abi, abi >= abiNetwork
	if !r.Network {
		r.Missing = append(r.Missing, fmt.Sprintf("TCP is not confined: the kernel's Landlock (ABI %d) knows files alone, ABI %d and Linux 6.7 know TCP", abi, abiNetwork))
	}
	return nil
}
