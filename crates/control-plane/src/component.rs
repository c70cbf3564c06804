//! One component of a control plane: its command line, its readiness probe, and its process.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::certs::Certificate;
use crate::error::{Error, Result};
use crate::kubeconfig;
use crate::process::{ComponentProcess, Launch};

/// Interval between two readiness probes.
pub(crate) const READY_POLL: Duration = Duration::from_millis(50);
/// Time limit of one probe: a component that hangs is not ready.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to retry when a component needs a port that is taken.
const PORT_RETRIES: u32 = 5;
const PORT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How to ask a component whether it is ready.
#[derive(Debug, Clone)]
pub(crate) enum Probe {
    /// Over plain HTTP on loopback.
    Plain { port: u16, path: &'static str },
    /// Over HTTPS, with this client certificate.
    Secure { url: String, path: &'static str, ca_pem: String, identity: Certificate },
}

/// One component. Its lock is not tied to a runtime: tests on different runtimes share it.
#[derive(Debug)]
pub(crate) struct Component {
    launch: Launch,
    probe: Probe,
    process: Mutex<Option<ComponentProcess>>,
}

// === impl Component ===

impl Component {
    pub(crate) fn new(launch: Launch, probe: Probe) -> Self {
        Self { launch, probe, process: Mutex::new(None) }
    }

    /// Starts the component and waits until it is ready.
    pub(crate) async fn start(&self, deadline: Duration) -> Result<()> {
        let mut current = self.process.lock().await;
        if let Some(process) = current.as_mut()
            && process.check_running().is_ok()
        {
            return Err(Error::AlreadyRunning(self.launch.component));
        }
        *current = None;
        let mut process = self.launch.start()?;
        self.wait_ready(&mut process, deadline).await?;
        *current = Some(process);
        Ok(())
    }

    /// As [`start`](Self::start), for a component that has to get the same port again.
    pub(crate) async fn start_again(&self, deadline: Duration) -> Result<()> {
        for _ in 0..PORT_RETRIES {
            match self.start(deadline).await {
                Err(error) if error.port_conflict().is_some() => sleep(PORT_RETRY_INTERVAL).await,
                result => return result,
            }
        }
        self.start(deadline).await
    }

    /// Stops the component: SIGTERM, and SIGKILL after `grace`. Returns when it has ended.
    pub(crate) async fn stop(&self, grace: Duration) -> Result<()> {
        self.take().await?.stop(grace).await;
        Ok(())
    }

    /// Kills the component. Returns when it has ended.
    pub(crate) async fn kill(&self) -> Result<()> {
        drop(self.take().await?);
        Ok(())
    }

    pub(crate) async fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.lock().await;
        process.as_ref().ok_or(Error::NotRunning(self.launch.component))?.signal(signal);
        Ok(())
    }

    /// Pauses the component, and returns when all its threads are stopped: SIGSTOP takes effect some time after it was sent, and not
    /// on all threads at once.
    pub(crate) async fn pause(&self) -> Result<()> {
        let process = self.process.lock().await;
        let process = process.as_ref().ok_or(Error::NotRunning(self.launch.component))?;
        process.signal(Signal::STOP);
        let end = Instant::now() + Duration::from_secs(5);
        while !is_stopped(process.pid()) {
            if Instant::now() > end {
                return Err(Error::NotReady {
                    component: self.launch.component,
                    waited: Duration::from_secs(5),
                    seen: "some threads are still running".to_owned(),
                    log: self.launch.log.clone(),
                    tail: String::new(),
                });
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Its name and process id, while it runs.
    pub(crate) async fn pid(&self) -> Option<(&'static str, u32)> {
        self.process.lock().await.as_ref().map(|process| (self.launch.component, process.pid()))
    }

    /// Kills the component without awaiting, for `Drop`.
    pub(crate) fn kill_now(&mut self) {
        drop(self.process.get_mut().take());
    }

    async fn take(&self) -> Result<ComponentProcess> {
        self.process.lock().await.take().ok_or(Error::NotRunning(self.launch.component))
    }

    async fn wait_ready(&self, process: &mut ComponentProcess, deadline: Duration) -> Result<()> {
        let started = Instant::now();
        let probe = self.probe.prepare()?;
        loop {
            process.check_running()?;
            let seen = match timeout(PROBE_TIMEOUT, probe.ask()).await {
                Ok(Ok(())) => {
                    // The answer could come from another process that has taken our port.
                    process.check_running()?;
                    let component = self.launch.component;
                    tracing::debug!(component, elapsed = ?started.elapsed(), "component is ready");
                    return Ok(());
                }
                Ok(Err(seen)) => seen,
                Err(_) => format!("no answer within {PROBE_TIMEOUT:?}"),
            };
            if started.elapsed() >= deadline {
                return Err(process.not_ready(deadline, seen));
            }
            sleep(READY_POLL).await;
        }
    }
}

/// A probe with its client, which belongs to the current runtime.
enum ProbeClient {
    Plain { port: u16, path: &'static str },
    Secure { client: kube::Client, path: &'static str },
}

impl Probe {
    fn prepare(&self) -> Result<ProbeClient> {
        Ok(match self {
            Self::Plain { port, path } => ProbeClient::Plain { port: *port, path },
            Self::Secure { url, path, ca_pem, identity } => {
                ProbeClient::Secure { client: kubeconfig::client(url, ca_pem, identity)?, path }
            }
        })
    }
}

impl ProbeClient {
    async fn ask(&self) -> Result<(), String> {
        match self {
            Self::Plain { port, path } => match get_plain(*port, path).await {
                Ok(head) if head.split(' ').nth(1) == Some("200") => Ok(()),
                Ok(head) => Err(head),
                Err(error) => Err(error.to_string()),
            },
            Self::Secure { client, path } => {
                let request =
                    http::Request::get(*path).body(Vec::new()).map_err(|error| error.to_string())?;
                client.request_text(request).await.map(drop).map_err(|error| error.to_string())
            }
        }
    }
}

/// The status line of the response to a GET; not worth an HTTP client.
async fn get_plain(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Whether every thread of the process is stopped.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        // The thread has just ended.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
    })
}
