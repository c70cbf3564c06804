use super::*;

async fn outcomes(faults: &Faults, calls: usize) -> String {
    let mut shown = String::new();
    for _ in 0..calls {
        let failed = match faults.enter(Call::Create).await {
            Ok(guard) => guard.finish(Ok(())).is_err(),
            Err(_) => true,
        };
        shown.push(if failed { 'x' } else { '.' });
    }
    shown
}

fn unavailable() -> Fault {
    Fault::error(Kind::Unavailable, "away")
}

#[tokio::test]
async fn times_every_and_after_choose_the_calls() {
    for (fault, expected) in [
        (unavailable(), "xxxxxx"),
        (unavailable().times(2), "xx...."),
        (unavailable().every(3), "..x..x"),
        (unavailable().after(4), "....xx"),
        (unavailable().after(1).every(2).times(1), "..x..."),
    ] {
        let faults = Faults::default();
        faults.set(Call::Create, fault.clone());
        assert_eq!(outcomes(&faults, 6).await, expected, "{fault:?}");
        assert_eq!(faults.calls(Call::Create), 6);
    }
}

#[tokio::test]
async fn a_fault_affects_only_its_call_and_can_be_cleared() {
    let faults = Faults::default();
    faults.set(Call::Ping, unavailable());
    assert_eq!(outcomes(&faults, 2).await, "..");
    let error = faults.enter(Call::Ping).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (&Kind::Unavailable, "away"));
    faults.clear(Call::Ping);
    faults.enter(Call::Ping).await.unwrap();
}

#[tokio::test]
async fn after_success_returns_the_error_after_the_call_has_succeeded() {
    let faults = Faults::default();
    faults.set(Call::Delete, unavailable().after_success());
    let guard = faults.enter(Call::Delete).await.unwrap();
    assert_eq!(*guard.finish(Ok(1)).unwrap_err().kind(), Kind::Unavailable);
    // An error of the call itself has priority.
    let guard = faults.enter(Call::Delete).await.unwrap();
    let answer: Result<()> = guard.finish(Err(Error::not_found("gone")));
    assert_eq!(*answer.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_waits_until_the_fault_is_cleared() {
    let faults = Faults::default();
    faults.set(Call::Ping, Fault::hang());
    let call = faults.enter(Call::Ping);
    tokio::pin!(call);
    let hour = Duration::from_hours(1);
    assert!(tokio::time::timeout(hour, &mut call).await.is_err());
    faults.set(Call::Create, unavailable());
    assert!(tokio::time::timeout(hour, &mut call).await.is_err());
    faults.clear(Call::Ping);
    call.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_takes_the_configured_time() {
    let faults = Faults::default();
    faults.set(Call::Status, Fault::slow(Duration::from_secs(5)));
    let begin = tokio::time::Instant::now();
    faults.enter(Call::Status).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(5));
}

#[test]
fn an_unknown_kind_of_error_is_refused_with_the_nearest_one() {
    assert!(parse_kind("Unavalable").unwrap_err().contains("did you mean Unavailable?"));
    assert!(parse_kind("zzz").unwrap_err().contains("NotFound, AlreadyExists"));
}
