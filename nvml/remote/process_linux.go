package remote

import "syscall"

// sysProcAttr makes the helper end when the agent does, however that ends: politely, because a monitor that was killed
// has frozen a GPU before (NVIDIA/dcgm-exporter#84). In a process group of its own it does not get the terminal's
// interrupt, so that the agent ends it in its own order.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
}
