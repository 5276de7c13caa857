package timeline

// Inventory is what there is on and around a GPU besides its counters: it changes rarely, if at all, and is read anew
// every few seconds. What the driver does not tell is zero.
type Inventory struct {
	GPU            int          `json:"gpu"` // position in the list of GPUs
	At             Instant      `json:"at"`
	NUMANode       int          `json:"numa_node"` // NoNUMANode if the driver does not tell
	PCIeMaxGen     int          `json:"pcie_max_gen,omitempty"`
	PCIeMaxWidth   int          `json:"pcie_max_width,omitempty"` // lanes
	PCIeWidth      int          `json:"pcie_width,omitempty"`     // lanes, as they are; those at rest are no fewer
	AppSMClockHz   float64      `json:"app_sm_clock_hz,omitempty"`
	AppMemClockHz  float64      `json:"app_mem_clock_hz,omitempty"`     // clocks that an administrator asked for; locked ones are not told
	StandingHz     float64      `json:"standing_sm_clock_hz,omitempty"` // SM clock that has stood below its highest, busy, with nothing told to hold it
	NVLinks        []NVLink     `json:"nvlinks,omitempty"`
	Processes      []GPUProcess `json:"processes,omitempty"`
	ProcessesKnown bool         `json:"processes_known"` // none is an answer
}

// NoNUMANode is the node of a GPU whose driver does not tell it.
const NoNUMANode = -1

// NVLink is one link of a GPU.
type NVLink struct {
	Link      int    `json:"link"`
	Up        bool   `json:"up"`
	PeerBusID string `json:"peer_pci_bus_id,omitempty"` // of the other end, where the driver tells it
}

// GPUProcess is a process that computes on a GPU. The driver tells process ids of the host, whatever namespace asks.
type GPUProcess struct {
	PID         int    `json:"pid"`
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
}

// InventorySink is a GPUSink that takes inventories too. A source looks for it and says nothing where it is not there.
type InventorySink interface {
	AddInventory(v Inventory)
}
