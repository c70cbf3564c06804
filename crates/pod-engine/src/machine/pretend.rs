//! Machines of files, for tests.

use std::{fs, path::Path};

use super::Machine;

/// A machine of files, as tests need it: 4 processors, 8 GiB, pages of 2 MiB.
pub fn machine(folder: &Path) -> Machine {
    for (path, text) in [
        ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"),
        (
            "proc/cpuinfo",
            "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\n\nprocessor\t: 2\n\nprocessor\t: 3\n",
        ),
        ("proc/loadavg", "0.1 0.2 0.3 2/345 9999\n"),
        ("proc/sys/kernel/pid_max", "32768\n"),
        ("proc/sys/kernel/osrelease", "6.18.1-test\n"),
        ("proc/sys/kernel/random/boot_id", "boot\n"),
        ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
        ("proc/self/oom_score_adj", "-5\n"),
        ("etc/machine-id", "mid\n"),
        ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Test Linux 1\"\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
    ] {
        put(folder, path, text);
    }
    Machine::at(folder, folder)
}

/// Writes a file of the machine.
///
/// # Panics
///
/// When it cannot be written.
pub fn put(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a test writes its files")).expect("a test writes its files");
    fs::write(path, text).expect("a test writes its files");
}
