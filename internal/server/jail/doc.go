// Package jail makes a process drop everything that it no longer needs:
// privileges, files, network and system calls.
package jail
