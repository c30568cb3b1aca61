"""The job file that `job init` writes: one to run at once, and to read from top to bottom."""

from __future__ import annotations

from typing import Final

SHORT: Final = """\
job "example" {
  group "web" {
    network {
      port "http" {}
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "python3"
        args    = ["-m", "http.server", "${NOMAD_PORT_http}", "--directory", "local"]
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
"""

FULL: Final = """\
# Values that differ between runs: `job run -var copies=3 example.nomad.hcl`.
variable "copies" {
  description = "How many allocations of the group are wanted."
  type        = number
  default     = 1
}

# A job is what you want to run. Its name is unique within its namespace.
job "example" {
  # "service" runs until it is stopped, "batch" until it is done; "system" and "sysbatch" do the same on every node.
  type = "service"

  # From 1 to 100. Jobs of higher priority are looked at first.
  priority = 50

  # Which nodes may be used: by datacenter ("*" is any) and by node pool.
  datacenters = ["*"]
  node_pool   = "default"

  # What a node must have. `fedsched node status` shows the attributes of each.
  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  # How a new version replaces the old one: so many at a time, each of them healthy for a while before the next.
  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    healthy_deadline = "3m"
    auto_revert      = true
  }

  # A group is placed as a whole on one node, as often as its count says.
  group "web" {
    count = var.copies

    # Ports are handed out by the scheduler; `static = 8080` would ask for a certain one.
    network {
      port "http" {}
    }

    # The service can be found by its name while the group runs and its checks pass.
    service {
      name     = "example-web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
      }
    }

    # Callers get time to hear of the end before the tasks are stopped.
    shutdown_delay = "5s"

    # What happens on the node when a task fails: two restarts within half an hour, then the group has failed there.
    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    # And then, by the servers: a replacement, on another node if there is one.
    reschedule {
      delay          = "30s"
      delay_function = "exponential"
      max_delay      = "10m"
      unlimited      = true
    }

    # Scratch space in MB that all tasks of the group share.
    ephemeral_disk {
      size = 300
    }

    # A task is one process. Its driver says how it is run, and what its config may hold.
    task "server" {
      driver = "raw_exec"

      config {
        command = "python3"
        args    = ["-m", "http.server", "${NOMAD_PORT_http}", "--directory", "local"]
      }

      env {
        GREETING = "hello from ${NOMAD_JOB_NAME}"
      }

      # Files are rendered before the task starts, and anew when what they are made of changes.
      template {
        destination = "local/index.html"
        data        = <<-EOT
          <h1>It works</h1>
          <p>This is allocation {{ env "NOMAD_ALLOC_ID" }}.</p>
        EOT
      }

      # What the task needs: MHz and MB.
      resources {
        cpu    = 100
        memory = 64
      }

      kill_timeout = "10s"
    }
  }
}
"""

CONNECT: Final = """\
# Two groups that talk to each other through sidecars: neither needs to know where the other runs, and what goes
# between them is encrypted. The images stand for your own.
job "countdash" {
  # Serves the count. It has no port on its host: only its sidecar can be reached.
  group "api" {
    shutdown_delay = "5s"

    network {
      mode = "bridge"
    }

    service {
      name = "count-api"
      port = "9001"

      connect {
        sidecar_service {}
      }
    }

    task "web" {
      driver = "docker"

      config {
        image = "counter-api:v3"
      }
    }
  }

  # Shows the count, on port 9002 of its host.
  group "dashboard" {
    shutdown_delay = "5s"

    network {
      mode = "bridge"

      port "http" {
        static = 9002
        to     = 9002
      }
    }

    service {
      name = "count-dashboard"
      port = "http"

      connect {
        sidecar_service {
          proxy {
            # The sidecar makes count-api appear as a port of this group's own loopback device.
            upstreams {
              destination_name = "count-api"
              local_bind_port  = 8080
            }
          }
        }
      }
    }

    task "dashboard" {
      driver = "docker"

      env {
        COUNTING_SERVICE_URL = "http://${NOMAD_UPSTREAM_ADDR_count_api}"
      }

      config {
        image = "counter-dashboard:v3"
      }
    }
  }
}
"""


def text_of(*, short: bool, connect: bool) -> str:
    """Give the example that was asked for."""
    if not connect:
        return SHORT if short else FULL
    lines = CONNECT.splitlines(keepends=True)
    return "".join(line for line in lines if not short or not line.lstrip().startswith("#"))
