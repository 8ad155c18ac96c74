// Package jail has a process give up what it does not need any more: privileges, files, network and system calls.
package jail
