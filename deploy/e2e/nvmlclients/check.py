"""Holds other people's clients of libnvidia-ml.so.1 against what the simulated driver is told to show."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

MIB = 1 << 20

# What a client says of each GPU, as JSON on its last line of output. Each runs in a process of its own: a library is loaded once.
PYNVML = """
import json
import pynvml as n
n.nvmlInit()
out = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    u = n.nvmlDeviceGetUtilizationRates(h) if not n.nvmlDeviceGetMigMode(h)[0] else None
    fields = n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_POWER_INSTANT, n.NVML_FI_DEV_MEMORY_TEMP])
    procs = n.nvmlDeviceGetComputeRunningProcesses(h)
    out.append({
        "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h), "bus": n.nvmlDeviceGetPciInfo(h).busId,
        "sm_mhz": n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), "mem_mhz": n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
        "power_w": n.nvmlDeviceGetPowerUsage(h) / 1e3, "limit_w": n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
        "used": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used, "total": n.nvmlDeviceGetMemoryInfo(h).total,
        "celsius": n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), "duty": u.gpu / 100 if u else None,
        "reasons": n.nvmlDeviceGetCurrentClocksEventReasons(h), "energy_j": n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,
        "instant_w": fields[0].value.uiVal / 1e3, "pids": [p.pid for p in procs], "instances": 0,
        "links": [], "lanes": n.nvmlDeviceGetCurrPcieLinkWidth(h),
    })
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        try:
            up = n.nvmlDeviceGetNvLinkState(h, link)
        except (n.NVMLError_NotSupported, n.NVMLError_InvalidArgument):
            break
        out[-1]["links"].append(n.nvmlDeviceGetNvLinkRemotePciInfo(h, link).busId if up else None)
    for m in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            g = n.nvmlDeviceGetMigDeviceHandleByIndex(h, m)
        except n.NVMLError_NotFound:
            continue
        out[-1]["instances"] += 1
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(g)) == out[-1]["uuid"]
        assert n.nvmlDeviceGetUUID(g).startswith("MIG-"), n.nvmlDeviceGetUUID(g)
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "gpus": out}))
n.nvmlShutdown()
"""

GPM = """
import json, time
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1 if n.nvmlDeviceGetCount() > 1 else 0)
assert n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
n.nvmlGpmSampleGet(h, a)
time.sleep(1.5)
n.nvmlGpmSampleGet(h, b)
q = n.c_nvmlGpmMetricsGet_t()
q.version, q.numMetrics, q.sample1, q.sample2 = n.NVML_GPM_METRICS_GET_VERSION, 2, a, b
q.metrics[0].metricId, q.metrics[1].metricId = n.NVML_GPM_METRIC_SM_UTIL, n.NVML_GPM_METRIC_DRAM_BW_UTIL
n.nvmlGpmMetricsGet(q)
print(json.dumps([[m.nvmlReturn, m.value / 100] for m in q.metrics[:2]]))
n.nvmlGpmSampleFree(a)
n.nvmlGpmSampleFree(b)
n.nvmlShutdown()
"""

NVITOP = """
import json
from nvitop import Device
print(json.dumps([{
    "name": d.name(), "uuid": d.uuid(), "bus": d.bus_id(), "sm_mhz": d.sm_clock(), "mem_mhz": d.memory_clock(),
    "power_w": d.power_usage() / 1e3, "limit_w": d.power_limit() / 1e3, "used": d.memory_used(), "total": d.memory_total(),
    "celsius": d.temperature(), "duty": None if d.is_mig_mode_enabled() else d.gpu_utilization() / 100,
    "instances": len(d.mig_devices()),
} for d in Device.all()]))
"""


class Failures:
    """Counts what does not hold, and goes on."""

    def __init__(self):
        self.count = 0

    def hold(self, what, ok):
        print(("ok    " if ok else "FAIL  ") + what)
        self.count += not ok


class Page:
    """The page, and what is there to be seen on it."""

    def __init__(self, binary, path, scenario):
        args = [binary, "--page", path] + (["--scenario", scenario] if scenario else [])
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def truth(self):
        self.process.stdin.write("now\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        return self.process.wait(10)


SHOWN = {  # of the clients: of the world, in what unit, by how much a rounding or a refresh may be off
    "sm_mhz": ("SMClockHz", 1e6, 1), "mem_mhz": ("MemClockHz", 1e6, 1), "power_w": ("PowerW", 1, 1), "limit_w": ("PowerLimitW", 1, 1),
    "used": ("MemUsedBytes", 1, 2 * MIB), "celsius": ("TemperatureC", 1, 1), "instant_w": ("PowerW", 1, 1),
    "energy_j": ("EnergyJ", 1, 1), "reasons": ("Reasons", 1, 0),
}


def compare(fail, who, said, truth):
    devices = [t for t in truth if not t.get("parent_uuid")]
    fail.hold(f"{who}: lists {len(said)} of {len(devices)} GPUs", len(said) == len(devices))
    off = []
    for i, (have, device) in enumerate(zip(said, devices)):
        for key, word in (("name", "name"), ("uuid", "uuid"), ("bus", "pci_bus_id"), ("total", "memory_bytes")):
            if have.get(key, device[word]) != device[word]:
                off.append(f"gpu {i} {key} {have[key]}, want {device[word]}")
        for key, (word, unit, slack) in SHOWN.items():
            showed = [s[word] / unit for s in device["Showed"]]
            value = have.get(key)
            if value is not None and not min(showed) - slack <= value <= max(showed) + slack:
                off.append(f"gpu {i} {key} {value}, want {min(showed)} to {max(showed)}")
        if have.get("duty") is not None and not 0 <= have["duty"] <= 1:
            off.append(f"gpu {i} duty {have['duty']}")
        instances = sum(t.get("parent_uuid") == device["uuid"] for t in truth)
        if have.get("instances", instances) != instances:
            off.append(f"gpu {i} has {have['instances']} instances, want {instances}")
    fail.hold(f"{who}: every value is what the GPUs showed" + "".join("\n      " + o for o in off), not off)


def run(python, env, *args):
    done = subprocess.run([python, *args], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{args[:2]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def of_gpustat(text):
    return [{
        "name": g["name"], "uuid": g["uuid"], "power_w": g["power.draw"], "limit_w": g["enforced.power.limit"],
        "used": g["memory.used"] * MIB, "celsius": g["temperature.gpu"],
        "duty": None if g["utilization.gpu"] is None else g["utilization.gpu"] / 100,
    } for g in json.loads(text)["gpus"]]


def clients(fail, page, env):
    """Asks each client once, and holds what it says against what there was to be seen while it ran."""
    def ask(who, args, parse):
        page.truth()  # from here on
        said = parse(run(sys.executable, env, *args))
        compare(fail, who, said, page.truth())
        return said

    said = ask("nvidia-ml-py", ["-c", PYNVML], lambda text: json.loads(text.splitlines()[-1])["gpus"])
    (sm_code, sm), (dram_code, dram) = json.loads(run(sys.executable, env, "-c", GPM).splitlines()[-1])
    fail.hold(f"nvidia-ml-py: windows of activity: SM {sm:.3f}, DRAM {dram:.3f}", sm_code == dram_code == 0 and 0 < sm <= 1 and 0 < dram <= 1)
    ask("nvitop", ["-c", NVITOP], lambda text: json.loads(text.splitlines()[-1]))
    ask("gpustat --json", ["-m", "gpustat", "--json"], of_gpustat)
    table = run(sys.executable, env, "-m", "nvitop", "--once", "--colorful", "--ascii")
    # Its table shortens names and addresses, and goes on to another moment than the call before.
    fail.hold("nvitop --once: its table shows the GPUs", all(g["bus"][-10:] in table and g["name"][7:11] in table for g in said))
    return said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", required=True, help="the program that plays the page")
    parser.add_argument("--library", dest="driver", required=True, help="folder of the simulated driver library")
    args = parser.parse_args()
    fail = Failures()
    for scenario in ("", "power_cap"):
        print(f"\n{scenario or 'square waves, three GPUs, the first cut into two'}")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page")
            page = Page(args.page, path, scenario)
            page.truth()  # the page is there
            env = dict(os.environ, LD_LIBRARY_PATH=args.driver, TPOTSCOPE_NVML_SIM=path, TERM="xterm", COLUMNS="120", LINES="60")
            try:
                said = clients(fail, page, env)
                pids = [[4000]] if scenario else [[4000], [4001], [4002]]
                links = [] if scenario else ["00000000:C5:00.0"] * 17 + [None]
                fail.hold("nvidia-ml-py: the processes are those of the page", [g["pids"] for g in said] == pids)
                fail.hold("nvidia-ml-py: so are links, their other ends and lanes", all((g["links"], g["lanes"]) == (links, 16) for g in said))
            finally:
                fail.hold("the page's program ends", page.close() == 0)
    print(f"\n{fail.count} failures")
    return fail.count > 0


if __name__ == "__main__":
    sys.exit(main())
