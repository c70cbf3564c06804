//! The conformance suite: holds a provider to the contract, without a control plane.
//!
//! ```
//! # use std::sync::Arc;
//! # use vk_provider::{Context, Provider, Result};
//! # async fn connect(_node: String) -> Result<Arc<dyn Provider>> {
//! #     Err(vk_provider::Error::unavailable("connect: there is no backend"))
//! # }
//! struct MyBackend;
//!
//! #[async_trait::async_trait]
//! impl vk_testing::conformance::Subject for MyBackend {
//!     async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
//!         connect(context.node_name).await
//!     }
//! }
//!
//! vk_testing::conformance!(MyBackend);
//! ```
//!
//! The line makes one test of each case, so that `cargo test` names every rule and each can be run alone. The cases call
//! the provider as the core would: with pods that they make, a resolver with fixed answers, a limit for each call, and the
//! core's reaction to errors. [`Subject`] says how the provider is opened, what its backend cannot do, and how its pods
//! are made to end or to resist.
//!
//! A case about something that the backend is said to be without prints that it does not apply. A failed one quotes the
//! sentence of the contract that was broken, what was seen, and what to do.

mod caller;
mod case;
mod context;
mod pod_builder;
mod pod_status;
mod resolver;
mod result;
mod subject;
mod table;

use std::{any::Any, fmt, io::Write as _, sync::Arc, time::Duration};

use futures::future::BoxFuture;

pub use self::{
    pod_builder::SETTINGS,
    result::{CaseResult, Violation},
    subject::{ContainerBehavior, Feature, PodBehavior, Subject},
};

use self::{context::CaseContext, result::Outcome};

/// A case waits for a few things one after the other, each within the subject's limit. One that has not ended after so
/// many limits never will: something blocks its thread.
const LIMITS: u32 = 20;
/// How long what is left of a case may take to end with it.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// One rule of the contract, and how it is checked.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is about, such as `create`.
    pub area: &'static str,
    /// Its name, which is that of its test.
    pub name: &'static str,
    /// The sentence of the contract that it enforces.
    pub rule: &'static str,
    check: for<'a> fn(&'a CaseContext) -> BoxFuture<'a, Outcome>,
}

/// Every case, in the order in which one would make a provider pass them.
pub fn cases() -> &'static [Case] {
    crate::__conformance_cases!(__conformance_table)
}

/// Makes one test of each case of the suite, for the [`Subject`](crate::conformance::Subject) that the expression gives.
///
/// The expression is evaluated once for each case, inside of a tokio runtime. Put the line into a module of its own where
/// a crate tests several subjects.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::__conformance_cases! { __conformance_tests $subject }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ([] $($area:ident :: $name:ident $rule:literal;)*) => {
        &[$(
            Case {
                area: stringify!($area),
                name: stringify!($name),
                rule: $rule,
                check: |context| Box::pin(case::$area::$name(context)),
            },
        )*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$subject:expr] $($area:ident :: $name:ident $rule:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::check(stringify!($name), || $subject);
            }
        )*
    };
}

// === impl Case ===

impl Case {
    /// The case of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        cases().iter().find(|case| case.name == name)
    }

    /// Runs it, and removes the pods that it made. Needs a tokio runtime with time.
    pub async fn run(&self, subject: Arc<dyn Subject>) -> CaseResult {
        let context = CaseContext::new(subject);
        let outcome = (self.check)(&context).await;
        context.clean_up().await;
        outcome.into()
    }

    /// A failure in full: the rule, what was seen, what to do.
    pub fn report(&self, violation: &Violation) -> String {
        let Self { area, name, rule, .. } = self;
        format!("the provider breaks a rule of the contract: {name} ({area})\n  rule: {rule}\n{violation}")
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("area", &self.area).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Runs the case of this name to its end, in a runtime of its own: what a test of [`conformance!`](crate::conformance!)
/// does.
///
/// # Panics
///
/// When the provider breaks the rule.
#[track_caller]
pub fn check<S: Subject>(name: &str, subject: impl FnOnce() -> S) {
    let case = Case::named(name).unwrap_or_else(|| panic!("no case is called {name}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap_or_else(|error| panic!("start a tokio runtime: {error}"));
    let verdict = runtime.block_on(async {
        let subject: Arc<dyn Subject> = Arc::new(subject());
        let limit = subject.limit() * LIMITS;
        // In a task of its own: a provider that blocks the thread shall not block the clock.
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { case.run(subject).await });
        match tokio::time::timeout(limit, task.join_next()).await {
            Ok(Some(Ok(verdict))) => verdict,
            Ok(Some(Err(error))) => broken(panicked(error)),
            Ok(None) | Err(_) => {
                broken(format!("the case did not end within {limit:?}: a call blocks its thread"))
            }
        }
    });
    runtime.shutdown_timeout(SHUTDOWN);
    match verdict {
        CaseResult::Passed => {}
        // Straight to the file: the test harness would swallow what a passing test prints.
        CaseResult::DoesNotApply(why) => {
            let _ = writeln!(std::io::stderr(), "{name} does not apply: {why}");
        }
        CaseResult::Violated(violation) => panic!("{}", case.report(&violation)),
    }
}

fn broken(seen: String) -> CaseResult {
    CaseResult::Violated(Violation {
        seen,
        advice: "let every call return an error instead, and await instead of block",
    })
}

fn panicked(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the case was cancelled".to_owned() };
    let text: &(dyn Any + Send) = &*panic;
    let text = text
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| text.downcast_ref::<&str>().map(|&it| it.to_owned()));
    format!("the provider panicked: {}", text.as_deref().unwrap_or("without a text"))
}

#[cfg(test)]
mod tests;
