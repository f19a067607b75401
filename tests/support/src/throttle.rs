//! Limits the CPU of a process as Lambda does: a share of one vCPU by the function's memory.
//!
//! Where a cgroup can be made, the kernel's quota limits the process, which is also Lambda's way.
//! Elsewhere a thread stops the process (SIGSTOP) while its CPU time is above its share.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Memory of a function with one vCPU.
const MB_PER_VCPU: f64 = 1769.0;
const PERIOD: Duration = Duration::from_millis(20);
/// The directories of the controller `cpu`, in version 1 and 2 of cgroups.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"];

/// Share of one vCPU of a function with so much memory.
pub fn share(memory_mb: u64) -> f64 {
    memory_mb as f64 / MB_PER_VCPU
}

/// The limit ends on drop.
pub enum Throttle {
    Cgroup(PathBuf),
    Signals(Arc<AtomicBool>, Option<JoinHandle<()>>),
}

impl Throttle {
    pub fn start(pid: u32, share: f64) -> Self {
        let quota = PERIOD.mul_f64(share);
        let cgroup = CGROUPS
            .iter()
            .find_map(|root| cgroup(root, pid, quota).ok());
        if let Some(cgroup) = cgroup {
            return Self::Cgroup(cgroup);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let ended = ended.clone();
            move || stop_above(quota, pid, &ended)
        });
        Self::Signals(ended, Some(thread))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        match self {
            Self::Cgroup(directory) => {
                let root = directory.parent().unwrap();
                for pid in fs::read_to_string(directory.join("cgroup.procs"))
                    .unwrap()
                    .lines()
                {
                    // The process may have ended.
                    let _ = fs::write(root.join("cgroup.procs"), pid);
                }
                let _ = fs::remove_dir(directory);
            }
            Self::Signals(ended, thread) => {
                ended.store(true, Relaxed);
                thread.take().unwrap().join().unwrap();
            }
        }
    }
}

/// Moves the process into a new cgroup with this CPU time per period.
fn cgroup(root: &str, pid: u32, quota: Duration) -> io::Result<PathBuf> {
    let directory = Path::new(root).join(format!("sqs-once-bench-{pid}"));
    fs::create_dir(&directory)?;
    let (quota, period) = (quota.as_micros(), PERIOD.as_micros());
    let limit = match directory.join("cpu.max") {
        version_2 if version_2.exists() => fs::write(version_2, format!("{quota} {period}")),
        _ => fs::write(directory.join("cpu.cfs_period_us"), period.to_string())
            .and_then(|()| fs::write(directory.join("cpu.cfs_quota_us"), quota.to_string())),
    };
    let moved = limit.and_then(|()| fs::write(directory.join("cgroup.procs"), pid.to_string()));
    if let Err(error) = moved {
        let _ = fs::remove_dir(&directory);
        return Err(error);
    }
    Ok(directory)
}

/// Stops the process while it has used more CPU time than the quota of the periods so far.
/// An unused quota does not add up.
fn stop_above(quota: Duration, pid: u32, ended: &AtomicBool) {
    // The shell's own `kill` sends a signal without another process.
    let mut shell = Command::new("sh").stdin(Stdio::piped()).spawn().unwrap();
    let mut commands = shell.stdin.take().unwrap();
    let mut stopped = false;
    let mut allowed = cpu_time(pid) + quota;
    let mut period_end = Instant::now() + PERIOD;
    while !ended.load(Relaxed) {
        let used = cpu_time(pid);
        if Instant::now() >= period_end {
            period_end += PERIOD;
            allowed = (allowed + quota).min(used + quota);
        }
        if stopped != (used >= allowed) {
            stopped = !stopped;
            let signal = if stopped { "STOP" } else { "CONT" };
            writeln!(commands, "kill -{signal} {pid}").unwrap();
        }
        thread::sleep(Duration::from_micros(300));
    }
    writeln!(commands, "kill -CONT {pid}").unwrap();
    drop(commands);
    shell.wait().unwrap();
}

/// CPU time of all threads, to the nanosecond; `/proc/<pid>/stat` counts ticks.
pub fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.map(|task| {
        // A thread that ends between the listing and the reading is missed.
        let stat = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        let on_cpu = stat.split(' ').next().unwrap_or_default();
        on_cpu.parse::<u64>().unwrap_or_default()
    });
    Duration::from_nanos(nanoseconds.sum())
}
