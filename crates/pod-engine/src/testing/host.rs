//! A fake host made of files.

use std::{fs, path::Path};

use crate::host::Host;

/// A host with 4 processors, 8 GiB of memory and huge pages of 2 MiB, made of files in this folder.
pub fn fake_host(folder: &Path) -> Host {
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
        write_file(folder, path, text);
    }
    Host::with_root(folder, folder)
}

/// Writes a file of the fake host.
///
/// # Panics
///
/// If the file cannot be written.
pub fn write_file(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a test writes its files")).expect("a test writes its files");
    fs::write(path, text).expect("a test writes its files");
}
