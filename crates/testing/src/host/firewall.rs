//! Removes the iptables chains that the CNI portmap plugin leaves when pods are killed together with their runtime.

use super::attempt;

/// The chain with the plugin's jumps for all pods of the host.
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
/// The chains to remove with it when no pod has host ports.
const COMPANIONS: [&str; 2] = ["CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"];

/// Removes the rules of a network, and the shared chains when it was the last network.
pub(super) fn remove(network: &str) {
    for program in ["iptables", "ip6tables"] {
        let rules = saved(program);
        let name = format!("\\\"{network}\\\"");
        let ours: Vec<&String> = rules.iter().filter(|rule| is_jump(rule) && rule.contains(&name)).collect();
        for rule in &ours {
            let words = words(rule);
            let mut args = vec!["-w", "-t", "nat", "-D"];
            args.extend(words.iter().skip(1).map(String::as_str));
            attempt(program, &args);
            if let Some(chain) = target(&words) {
                attempt(program, &["-w", "-t", "nat", "-F", chain]);
                attempt(program, &["-w", "-t", "nat", "-X", chain]);
            }
        }
        remove_shared(program);
    }
}

fn remove_shared(program: &str) {
    let rules = saved(program);
    let is_there = rules.iter().any(|rule| rule.starts_with(&format!(":{ENTRY} ")));
    if !is_there || rules.iter().any(|rule| is_jump(rule)) {
        return;
    }
    for rule in rules.iter().filter(|rule| rule.starts_with("-A") && rule.contains("CNI-HOSTPORT-")) {
        let words = words(rule);
        let mut args = vec!["-w", "-t", "nat", "-D"];
        args.extend(words.iter().skip(1).map(String::as_str));
        attempt(program, &args);
    }
    for chain in [ENTRY].iter().chain(&COMPANIONS) {
        attempt(program, &["-w", "-t", "nat", "-F", chain]);
        attempt(program, &["-w", "-t", "nat", "-X", chain]);
    }
}

fn is_jump(rule: &str) -> bool {
    rule.starts_with(&format!("-A {ENTRY} "))
}

fn saved(program: &str) -> Vec<String> {
    let output = attempt(&format!("{program}-save"), &["-t", "nat"]);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn target(words: &[String]) -> Option<&str> {
    let at = words.iter().position(|word| word == "-j")?;
    words.get(at + 1).map(String::as_str)
}

/// Splits a rule as a shell does: comments are quoted and contain escaped quotation marks.
fn words(rule: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for letter in rule.chars() {
        match letter {
            _ if escaped => {
                word.push(letter);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_split_as_a_shell_would() {
        let rule =
            r#"-A CNI-HOSTPORT-DNAT -m comment --comment "dnat name: \"peer\" id: \"1a\"" -j CNI-DN-1"#;
        let words = words(rule);
        assert_eq!(words[5], r#"dnat name: "peer" id: "1a""#);
        assert_eq!(target(&words), Some("CNI-DN-1"));
    }
}
