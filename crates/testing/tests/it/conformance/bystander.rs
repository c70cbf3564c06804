//! Faults in what is offered beside running pods.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use vk_provider::{
    ContainerRef, Error, PodRef, Result,
    ability::{
        Attach, AttachOptions, Exec, ExecOptions, Exit, Fit, Forward, LogBody, LogOptions, LogStream, Logs,
        LowerNode, PortForward, Started, Stats, Summary, Verdict,
    },
    error::Kind,
};
use vk_provider_mock::{PodHost, simulator::Request};

use super::{broken::Broken, fault::Fault};

/// Ends a container when it is dropped.
struct Killer(PodHost, ContainerRef);

impl Drop for Killer {
    fn drop(&mut self) {
        let Self(host, container) = self;
        let ContainerRef { pod, container } = container.clone();
        let _ = host.apply(Request::Finish { pod, container, exit_code: 0 });
    }
}

fn stream_of(body: LogBody) -> LogStream {
    match body {
        LogBody::Final(stream) | LogBody::Stamped(stream) | LogBody::Plain(stream) => stream,
    }
}

fn is_not_found<T>(answer: &Result<T>) -> bool {
    answer.as_ref().err().is_some_and(|error| *error.kind() == Kind::NotFound)
}

#[async_trait]
impl Logs for Broken {
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody> {
        let current = LogOptions { previous: false, ..options.clone() };
        let options = if self.fault == Fault::TakesCurrentForPrevious { &current } else { options };
        let answer = Logs::open(&self.inner, container, options).await;
        match self.fault {
            Fault::LogsForNobody if is_not_found(&answer) && container.container == "nobody" => {
                Ok(LogBody::Plain(stream::empty().boxed()))
            }
            Fault::LogsWithoutTimes => {
                let lines = [Ok(Bytes::from_static(b"no time\n"))];
                answer.map(|_| LogBody::Stamped(stream::iter(lines).boxed()))
            }
            Fault::LogsWithoutEnd if options.follow => {
                answer.map(|body| LogBody::Stamped(stream_of(body).chain(stream::pending()).boxed()))
            }
            Fault::IgnoresTail => answer.map(|body| LogBody::Final(stream_of(body))),
            _ => answer,
        }
    }
}

#[async_trait]
impl Exec for Broken {
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started> {
        let mut command = command.to_vec();
        if self.fault == Fault::ForgetsTheEnvironment && command == ["env"] {
            command = vec!["true".into()];
        }
        let mut container = container.clone();
        if self.fault == Fault::ExecutesForNobody && container.container == "nobody" {
            container.container = "app".into();
        }
        let mut started = match Exec::start(&self.inner, &container, &command, options).await {
            Err(error) if self.fault == Fault::ExecutesInTheDead && *error.kind() == Kind::Unavailable => {
                return Err(Error::internal(error.message().to_owned()));
            }
            answer => answer?,
        };
        if let Started::Session(session) = &mut started {
            match self.fault {
                Fault::ExitsWithZero => {
                    let exit = std::mem::replace(&mut session.exit, std::future::pending().boxed());
                    session.exit = exit.map(|exit| exit.map(|_| Exit { code: 0 })).boxed();
                }
                Fault::DropsInput => session.stdin = Some(Box::new(tokio::io::sink())),
                Fault::EndsTheContainerWithTheSession => {
                    let killer = Killer(self.host.clone(), container);
                    let exit = std::mem::replace(&mut session.exit, std::future::pending().boxed());
                    session.exit = exit
                        .map(|exit| {
                            // A command that ends by itself does no harm.
                            std::mem::forget(killer);
                            exit
                        })
                        .boxed();
                }
                _ => {}
            }
        }
        Ok(started)
    }
}

#[async_trait]
impl Attach for Broken {
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started> {
        let mut container = container.clone();
        if self.fault == Fault::AttachesToNobody && container.container == "nobody" {
            container.container = "app".into();
        }
        let mut started = Attach::attach(&self.inner, &container, options).await?;
        if let (Started::Session(session), Fault::EndsTheContainerWhenDetached) = (&mut started, self.fault) {
            let killer = Killer(self.host.clone(), container);
            let exit = std::mem::replace(&mut session.exit, std::future::pending().boxed());
            session.exit = exit
                .map(|exit| {
                    let _killer = killer;
                    exit
                })
                .boxed();
        }
        Ok(started)
    }
}

#[async_trait]
impl PortForward for Broken {
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward> {
        match self.fault {
            Fault::RefusesEveryPort if self.host_has(pod).await => {
                Err(Error::unavailable(format!("dial port {port} of pod {pod}: connection refused")))
            }
            Fault::DialsClosedPorts => self.inner.dial(pod, port.max(2)).await,
            Fault::DialsForNobody if !self.host_has(pod).await => {
                Err(Error::unavailable(format!("dial port {port} of pod {pod}: connection refused")))
            }
            _ => self.inner.dial(pod, port).await,
        }
    }
}

#[async_trait]
impl Stats for Broken {
    async fn summary(&self) -> Result<Summary> {
        let mut summary = self.inner.summary().await?;
        if self.fault == Fault::MeasuresNothing {
            summary.pods.clear();
        }
        Ok(summary)
    }
}

impl Fit for Broken {
    fn fit(&self, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[Arc<str>]) -> Vec<Verdict> {
        let (held, without) = match self.fault {
            Fault::ForgetsTheHeld => (Vec::new(), without),
            Fault::CountsTheHeldTwice => (held.iter().map(without_uid).collect(), without),
            Fault::KeepsThoseToBeWithout => (held.to_vec(), &[][..]),
            Fault::BooksWhatIsAsked => {
                let mut memory = self.memory.lock().unwrap();
                memory.asked.extend(pods.iter().map(without_uid));
                ([held, memory.asked.as_slice()].concat(), without)
            }
            _ => (held.to_vec(), without),
        };
        let fit = |pods: &[Arc<Pod>]| self.inner.fit(&held, pods, without);
        match self.fault {
            Fault::FitsOnlyTheFirst => fit(&pods[..pods.len().min(1)]),
            Fault::FitsEverything => {
                let one = |verdict: Verdict| match verdict {
                    Verdict::Refused { .. } => Verdict::Fits { room: 1, fullness: 100 },
                    other => other,
                };
                fit(pods).into_iter().map(one).collect()
            }
            Fault::ForgetsPodsBefore => pods.iter().flat_map(|pod| fit(&[Arc::clone(pod)])).collect(),
            Fault::CountsRefusals => {
                let mut verdicts = fit(pods);
                let mut memory = self.memory.lock().unwrap();
                for verdict in &mut verdicts {
                    if let Verdict::Refused { why, .. } = verdict {
                        memory.refusals += 1;
                        why[0].text = format!("refusal {}", memory.refusals);
                    }
                }
                verdicts
            }
            _ => fit(pods),
        }
    }

    fn best_nodes(&self, pod: &Pod, count: usize) -> Vec<LowerNode> {
        let nodes = self.inner.best_nodes(pod, count);
        match self.fault {
            Fault::RepeatsTheBestNodes => [nodes.clone(), nodes].concat(),
            _ => nodes,
        }
    }
}

/// A pod that nobody recognises.
fn without_uid(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    pod.metadata.uid = None;
    Arc::new(pod)
}

impl Broken {
    async fn host_has(&self, pod: &PodRef) -> bool {
        vk_provider::Provider::pod_status(&self.inner, pod).await.is_ok()
    }
}
